#define ISA isa_neon
#define ISA_NAME "neon"
#define SIMD_HEADER "simd_neon.h"
#include "isa.h"
