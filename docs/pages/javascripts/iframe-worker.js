// The search runs in a Worker, which browsers refuse to a page that is opened from the disk.
// There, this class runs the script of the worker in a hidden frame. The plugin `offline` writes
// the index as a script; it would load this file from another site if its name were another.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.scope = new Promise((resolve, reject) => {
        frame.addEventListener("load", () => {
          const scope = frame.contentWindow;
          scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          scope.importScripts = (...urls) => Promise.all(urls.map((each) => load(scope, each)));
          load(scope, url).then(() => resolve(scope), reject);
        }, { once: true });
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.scope.then((scope) => scope.dispatchEvent(new MessageEvent("message", { data })));
    }
  };

  const load = (scope, url) =>
    new Promise((resolve, reject) => {
      const script = scope.document.createElement("script");
      script.src = url;
      script.onload = resolve;
      script.onerror = () => reject(new Error(`Cannot load ${url}`));
      scope.document.body.append(script);
    });
}
