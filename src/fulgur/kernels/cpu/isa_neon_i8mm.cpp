#define ISA isa_neon_i8mm
#define ISA_NAME "neon_i8mm"
#define SIMD_HEADER "simd_neon.h"
#include "isa.h"
