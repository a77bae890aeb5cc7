"""A process that answers each line of JSON with one: a library in a process of its own."""

import json
import subprocess
import tempfile


class JSONProcess:
    """The parent's side.

    Args:
        command: list of strings.
        name: of the process, in errors.
        environment: its environment variables. Defaults to those of this process.
    """

    def __init__(self, command, name, environment=None):
        self._name = name
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C goes only to us; the process ends with its input
        )

    def ask(self, request):
        """Returns the answer to a request.

        Raises:
            RuntimeError: if the process ends; the message has the end of its output.
        """
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died: there is no answer below
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(f"{self._name} ended with:\n{self._errors.read()[-3000:]}")
        return json.loads(answer)

    def close(self):
        self._process.communicate()
