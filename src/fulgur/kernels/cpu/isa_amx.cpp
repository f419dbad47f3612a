#define ISA isa_amx
#define ISA_NAME "amx"
#define SIMD_HEADER "simd_avx512.h"
#define TILES_HEADER "tiles_amx.h"
#include "isa.h"
