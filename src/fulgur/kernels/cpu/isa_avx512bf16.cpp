#define ISA isa_avx512bf16
#define ISA_NAME "avx512bf16"
#define SIMD_HEADER "simd_avx512.h"
#include "isa.h"
