#define ISA isa_portable
#define ISA_NAME "portable"
#define SIMD_HEADER "simd_portable.h"
#include "isa.h"
