"""In and out of the formats that other people's tools read: GPT-2, Llama, BERT and T5 as Hugging Face has them."""

from trainbook.models.formats.exporting import Exported, export_network, export_task
from trainbook.models.formats.importing import Imported, load_pretrained

__all__ = ["Exported", "Imported", "export_network", "export_task", "load_pretrained"]
