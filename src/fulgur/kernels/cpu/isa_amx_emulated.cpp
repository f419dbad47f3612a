#define FULGUR_AMX_EMULATED
#define ISA isa_amx_emulated
#define ISA_NAME "amx_emulated"
#define SIMD_HEADER "simd_avx512.h"
#define TILES_HEADER "tiles_amx.h"
#include "isa.h"
