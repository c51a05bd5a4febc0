"""What the server of processes imports once: each run is a fork of it."""

import contextlib
import logging
import os
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import lightning.pytorch  # noqa: E402, F401
import sklearn.datasets  # noqa: E402, F401
import transformers  # noqa: E402
import transformers.trainer  # noqa: E402

import strangers.entries  # noqa: E402
import strangers.own_parts  # noqa: E402
import strangers.programs.fit  # noqa: E402
import strangers.programs.huggingface  # noqa: E402
import strangers.programs.lightning_loop  # noqa: E402
import strangers.programs.loop  # noqa: E402
import strangers.programs.trainbook_run  # noqa: E402, F401
import trainbook.doctor.diagnose  # noqa: E402
import trainbook.loop.start  # noqa: E402, F401

for name in ("Bert", "GPT2", "Llama", "T5", "Roberta", "DistilBert"):
    getattr(transformers, f"{name}Model")  # transformers imports a model when it is first asked for
with contextlib.suppress(ImportError):
    import accelerate.utils.deepspeed  # noqa: F401
