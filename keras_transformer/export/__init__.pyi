from .saved_model import export_saved_model as export_saved_model
