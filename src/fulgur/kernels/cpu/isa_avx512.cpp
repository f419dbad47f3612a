#define ISA isa_avx512
#define ISA_NAME "avx512"
#define SIMD_HEADER "simd_avx512.h"
#include "isa.h"
