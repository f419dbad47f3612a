#define ISA isa_avxvnni
#define ISA_NAME "avxvnni"
#define SIMD_HEADER "simd_avx2.h"
#include "isa.h"
