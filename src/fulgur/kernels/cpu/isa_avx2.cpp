#define ISA isa_avx2
#define ISA_NAME "avx2"
#define SIMD_HEADER "simd_avx2.h"
#include "isa.h"
