"""The sources that knobs and the doctor's rules cite, each once, with a link: https://…, or a page of this repository
for what we measured."""

from __future__ import annotations

# Models and their published settings
BERT = "Devlin et al. 2019, BERT, https://arxiv.org/abs/1810.04805"
CHINCHILLA = "Hoffmann et al. 2022, Chinchilla, https://arxiv.org/abs/2203.15556"
CODE_LLAMA = "Rozière et al. 2023, Code Llama, https://arxiv.org/abs/2308.12950"
GEMMA_2 = "Gemma 2 (2024), https://arxiv.org/abs/2408.00118"
GEMMA_3 = "Gemma 3 (2025), https://arxiv.org/abs/2503.19786"
GLM_130B = "GLM-130B, training notes (2022), https://github.com/THUDM/GLM-130B/blob/main/logs/main-log-en.md"
GOPHER = "Rae et al. 2021, Gopher, https://arxiv.org/abs/2112.11446"
GPT_2 = "Radford et al. 2019, GPT-2, https://github.com/openai/gpt-2"
GPT_3 = "Brown et al. 2020, GPT-3, https://arxiv.org/abs/2005.14165"
LLAMA = "Touvron et al. 2023, Llama, https://arxiv.org/abs/2302.13971"
LLAMA_2 = "Touvron et al. 2023, Llama 2, https://arxiv.org/abs/2307.09288"
LLAMA_3 = "Llama 3 (2024), https://arxiv.org/abs/2407.21783"
MINICPM = "Hu et al. 2024, MiniCPM, https://arxiv.org/abs/2404.06395"
MISTRAL_7B = "Jiang et al. 2023, Mistral 7B, https://arxiv.org/abs/2310.06825"
OLMO_2 = "OLMo 2 (2024), https://arxiv.org/abs/2501.00656"
OPT = "Zhang et al. 2022, OPT, https://arxiv.org/abs/2205.01068"
OPT_CHRONICLES = (
    "OPT-175B chronicles (2021), https://github.com/facebookresearch/metaseq/tree/main/projects/OPT/chronicles"
)
PALM = "Chowdhery et al. 2022, PaLM, https://arxiv.org/abs/2204.02311"
QWEN = "Bai et al. 2023, Qwen, https://arxiv.org/abs/2309.16609"
QWEN_2 = "Qwen2 (2024), https://arxiv.org/abs/2407.10671"
QWEN_2_5 = "Qwen2.5 (2024), https://arxiv.org/abs/2412.15115"
ROBERTA = "Liu et al. 2019, RoBERTa, https://arxiv.org/abs/1907.11692"
T5 = "Raffel et al. 2020, T5, https://arxiv.org/abs/1910.10683"
T5_1_1 = (
    "T5 1.1, https://github.com/google-research/text-to-text-transfer-transformer/blob/main/released_checkpoints.md"
)
TRANSFORMER = "Vaswani et al. 2017, https://arxiv.org/abs/1706.03762"
WHOLE_WORD_MASKING = "BERT's whole-word-masking models (2019), https://github.com/google-research/bert"

# Parts of a model
CRAMMING = "Geiping & Goldstein 2022, https://arxiv.org/abs/2212.14034"
DROPOUT = "Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html"
FIXUP = "Zhang et al. 2019, Fixup, https://arxiv.org/abs/1901.09321"
GELU = "Hendrycks & Gimpel 2016, https://arxiv.org/abs/1606.08415"
GLU = "Shazeer 2020, GLU variants, https://arxiv.org/abs/2002.05202"
GROUPED_QUERIES = "Ainslie et al. 2023, grouped-query attention, https://arxiv.org/abs/2305.13245"
LAYER_NORM = "Ba et al. 2016, https://arxiv.org/abs/1607.06450"
LLM_INT8 = "Dettmers et al. 2022, LLM.int8(), https://arxiv.org/abs/2208.07339"
LORA = "Hu et al. 2021, LoRA, https://arxiv.org/abs/2106.09685"
MULTI_QUERY = "Shazeer 2019, multi-query attention, https://arxiv.org/abs/1911.02150"
NO_POSITIONS = "Kazemnejad et al. 2023, https://arxiv.org/abs/2305.19466"
PRIMER = "So et al. 2021, Primer, https://arxiv.org/abs/2109.08668"
PRE_NORM = "Xiong et al. 2020, https://arxiv.org/abs/2002.04745"
QK_NORM = "Henry et al. 2020, https://arxiv.org/abs/2010.04245"
QLORA = "Dettmers et al. 2023, QLoRA, https://arxiv.org/abs/2305.14314"
REZERO = "Bachlechner et al. 2020, ReZero, https://arxiv.org/abs/2003.04887"
RMS_NORM = "Zhang & Sennrich 2019, https://arxiv.org/abs/1910.07467"
LONGFORMER = "Beltagy et al. 2020, Longformer, https://arxiv.org/abs/2004.05150"
POSITION_INTERPOLATION = "Chen et al. 2023, position interpolation, https://arxiv.org/abs/2306.15595"
VALUE_RESIDUAL = "Zhou et al. 2024, value residual learning, https://arxiv.org/abs/2410.17897"
ROFORMER = "Su et al. 2021, RoFormer, https://arxiv.org/abs/2104.09864"
TIED_EMBEDDINGS = "Press & Wolf 2017, https://arxiv.org/abs/1608.05859"
VIT_22B = "Dehghani et al. 2023, ViT-22B, https://arxiv.org/abs/2302.05442"
YARN = "Peng et al. 2023, YaRN, https://arxiv.org/abs/2309.00071"

# Width, depth and stability
COMPLETEP = "Dey et al. 2025, CompleteP, https://arxiv.org/abs/2505.01618"
DEPTH_MUP = "Yang et al. 2023, Depth-muP, https://arxiv.org/abs/2310.02244"
MEGATRON_MUP = "Megatron-LM's muP sweep (2026), https://github.com/NVIDIA/Megatron-LM/pull/3058"
ML_ENGINEERING = "Bekman, ML Engineering, https://github.com/stas00/ml-engineering/blob/master/training/instabilities"
MUTRANSFER = "Yang et al. 2022, muTransfer, https://arxiv.org/abs/2203.03466"
NANOGPT_MUP = "EleutherAI, nanoGPT-mup, https://github.com/EleutherAI/nanoGPT-mup"
SMALL_SCALE_PROXIES = "Wortsman et al. 2023, small-scale proxies, https://arxiv.org/abs/2309.14322"

# Optimizers, batches and schedules
ADAM = "Kingma & Ba 2014, Adam, https://arxiv.org/abs/1412.6980"
ADAMW = "Loshchilov & Hutter 2017, AdamW, https://arxiv.org/abs/1711.05101"
BITSANDBYTES = "bitsandbytes, https://github.com/bitsandbytes-foundation/bitsandbytes"
CRITICAL_BATCH = "McCandlish et al. 2018, https://arxiv.org/abs/1812.06162"
DECAY_AS_AVERAGE = "Wang & Aitchison 2024, https://arxiv.org/abs/2405.13698"
EIGHT_BIT_OPTIMIZERS = "Dettmers et al. 2021, 8-bit optimizers, https://arxiv.org/abs/2110.02861"
FIXED_DURATIONS = "Hägele et al. 2024, https://arxiv.org/abs/2405.18392"
LARGE_MINIBATCH_SGD = "Goyal et al. 2017, https://arxiv.org/abs/1706.02677"
LION = "Chen et al. 2023, Lion, https://arxiv.org/abs/2302.06675"
MEASURED_BATCHES = "Shallue et al. 2018, https://arxiv.org/abs/1811.03600"
MUON = "Jordan et al. 2024, Muon, https://kellerjordan.github.io/posts/muon/"
MUON_AT_SCALE = "Liu et al. 2025, Muon is scalable, https://arxiv.org/abs/2502.16982"
NORM_CLIPPING = "Pascanu et al. 2013, https://arxiv.org/abs/1211.5063"
RADAM = "Liu et al. 2019, RAdam, https://arxiv.org/abs/1908.03265"
SGD_MOMENTUM = "Sutskever et al. 2013, https://proceedings.mlr.press/v28/sutskever13.html"
SGDR = "Loshchilov & Hutter 2016, SGDR, https://arxiv.org/abs/1608.03983"
SMALL_BATCHES = "Marek et al. 2025, https://arxiv.org/abs/2507.07101"
SNAPSHOT_ENSEMBLES = "Huang et al. 2017, snapshot ensembles, https://arxiv.org/abs/1704.00109"
SQUARE_ROOT_RULE = "Malladi et al. 2022, square-root scaling rule, https://arxiv.org/abs/2205.10287"
STABLE_ADAMW = "Wortsman et al. 2023, StableAdamW, https://arxiv.org/abs/2304.13013"
STRAIGHT_TO_ZERO = "Bergsma et al. 2025, https://arxiv.org/abs/2502.15938"
TUNING_PLAYBOOK = "Google's tuning playbook (2023), https://github.com/google-research/tuning_playbook"
UNTUNED_WARMUP = "Ma & Yarats 2019, https://arxiv.org/abs/1910.04209"
WHY_WEIGHT_DECAY = "D'Angelo et al. 2023, https://arxiv.org/abs/2310.04415"
ZCLIP = "Kumar et al. 2025, ZClip, https://arxiv.org/abs/2504.02507"

# Data, objectives and evaluation
BASELINES_AND_BIGRAMS = "Wang & Manning 2012, https://aclanthology.org/P12-2018/"
BEAM_SEARCH = "Koehn & Knowles 2017, https://arxiv.org/abs/1706.03872"
BPE = "Sennrich et al. 2015, https://arxiv.org/abs/1508.07909"
DATATROVE = (
    "datatrove, https://github.com/huggingface/datatrove/blob/main/src/datatrove/pipeline/filters/"
    "gopher_repetition_filter.py"
)
EARLY_STOPPING = "Prechelt 1998, https://doi.org/10.1007/3-540-49430-8_3"
INCEPTION_V3 = "Szegedy et al. 2015, Inception-v3, https://arxiv.org/abs/1512.00567"
MASK_RATIO = "Wettig et al. 2022, https://arxiv.org/abs/2202.08005"
PACKING = "Krell et al. 2021, https://arxiv.org/abs/2107.02027"
RECIPE = "Karpathy 2019, a recipe for training neural networks, https://karpathy.github.io/2019/04/25/recipe/"
REPEATED_DATA = "Muennighoff et al. 2023, https://arxiv.org/abs/2305.16264"
SCALING_LAWS = "Kaplan et al. 2020, https://arxiv.org/abs/2001.08361"
SPELLING_TO_SOUND = "Yao & Zweig 2015, https://arxiv.org/abs/1506.00196"
VARIANCE = "Bouthillier et al. 2021, https://arxiv.org/abs/2103.03098"

# Precision, memory and distributed training
CHECKPOINTING = "Chen et al. 2016, https://arxiv.org/abs/1604.06174"
DDP_PAPER = "Li et al. 2020, PyTorch DDP, https://arxiv.org/abs/2006.15704"
FSDP_PAPER = "Zhao et al. 2023, PyTorch FSDP, https://arxiv.org/abs/2304.11277"
FP8_FORMATS = "Micikevicius et al. 2022, FP8 formats, https://arxiv.org/abs/2209.05433"
MIXED_PRECISION = "Micikevicius et al. 2017, https://arxiv.org/abs/1710.03740"
RECOMPUTATION = "Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198"
ZERO = "Rajbhandari et al. 2019, ZeRO, https://arxiv.org/abs/1910.02054"
ZERO_INFINITY = "Rajbhandari et al. 2021, ZeRO-Infinity, https://arxiv.org/abs/2104.07857"
ZERO_OFFLOAD = "Ren et al. 2021, ZeRO-Offload, https://arxiv.org/abs/2101.06840"

# Documentation and code
ACCELERATE_DOCS = "accelerate, https://huggingface.co/docs/accelerate/concept_guides/gradient_synchronization"
DEEPSPEED_CONFIG_DOCS = "DeepSpeed's configuration, https://www.deepspeed.ai/docs/config-json/"
DEEPSPEED_ZERO_DOCS = "DeepSpeed's ZeRO, https://deepspeed.readthedocs.io/en/latest/zero3.html"
HF_GENERATION_DOCS = "transformers, https://huggingface.co/docs/transformers/main_classes/trainer"
HF_TRAINER = "transformers, https://github.com/huggingface/transformers/blob/main/src/transformers/trainer.py"
HF_TRUNCATION_DOCS = "transformers, https://huggingface.co/docs/transformers/main_classes/tokenizer"
HF_CONFIGS = "published configurations, https://github.com/huggingface/transformers/tree/main/src/transformers/models"
LEVANTER = "Levanter, https://github.com/stanford-crfm/levanter"
LLM_C = "llm.c, https://github.com/karpathy/llm.c"
MEGATRON_LM = "Megatron-LM, https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py"
MODDED_NANOGPT = "modded-nanoGPT, https://github.com/KellerJordan/modded-nanogpt"
NANOCHAT = "nanochat, https://github.com/karpathy/nanochat"
NANOCHAT_LOG = "nanochat's experiment log, https://github.com/karpathy/nanochat/blob/master/dev/LOG.md"
NANOGPT = "nanoGPT, https://github.com/karpathy/nanoGPT/blob/master/model.py"
OLMO_CORE = "OLMo-core, https://github.com/allenai/OLMo-core"
SNIMU_LAMBDAS = (
    "snimu 2025, the lambdas of modded-nanoGPT, https://snimu.github.io/2025/08/11/modded-nanogpt-lambdas.html"
)
TORCHTITAN = "torchtitan, https://github.com/pytorch/torchtitan"
TORCHAO_FLOAT8_DOCS = "torchao's float8 training, https://docs.pytorch.org/ao/stable/workflows/training.html"
TORCH_AMP_DOCS = "PyTorch's GradScaler, https://docs.pytorch.org/docs/stable/amp.html"
TORCH_COMPILE_DOCS = "PyTorch's torch.compile, https://docs.pytorch.org/docs/stable/generated/torch.compile.html"
TORCH_CUDA_DOCS = "PyTorch's notes on CUDA, https://docs.pytorch.org/docs/stable/notes/cuda.html"
TORCH_DATA_DOCS = "PyTorch's DataLoader, https://docs.pytorch.org/docs/stable/data.html"
TORCH_DCP_DOCS = "PyTorch's distributed checkpoints, https://docs.pytorch.org/docs/stable/distributed.checkpoint.html"
TORCH_DDP_DOCS = (
    "PyTorch's DDP, https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"
)
TORCH_DISTRIBUTED_DOCS = "PyTorch's init_process_group, https://docs.pytorch.org/docs/stable/distributed.html"
TORCH_FSDP_DOCS = "PyTorch's fully_shard, https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
TORCH_REPRODUCIBILITY_DOCS = (
    "PyTorch's notes on reproducibility, https://docs.pytorch.org/docs/stable/notes/randomness.html"
)
TORCH_SYNC_BN_DOCS = (
    "PyTorch's SyncBatchNorm, https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html"
)

# Training problems and their thresholds
AUTOTRAINER = "AutoTrainer (2021), https://github.com/shiningrain/AUTOTRAINER"
CS231N = "CS231n's notes, https://cs231n.github.io/neural-networks-3/"
SAGEMAKER_DEBUGGER = (
    "SageMaker Debugger's rules, https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html"
)

# Measured here
MEASURED_COSTS = "measured: benchmarks/README.md"
MEASURED_GUARD = "measured: docs/guard.md"
MEASURED_TRAINERS = "measured: docs/reliability.md"
MEASURED_TRANSFER = "measured: docs/transfer.md"
