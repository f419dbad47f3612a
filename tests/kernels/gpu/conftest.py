import os

# Some hypervisors hide the AMX tile sizes: oneDNN then dies on an illegal instruction. Read before torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
