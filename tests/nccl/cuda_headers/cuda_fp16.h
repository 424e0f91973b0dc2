#pragma once
#include "cuda_runtime.h"
struct __half { unsigned short x; }; typedef __half half; struct half2 { half x,y; }; struct __half_raw { unsigned short x; };

static inline __half __float2half(float f){ union{float f; unsigned u;} v={f}; __half h; h.x = (unsigned short)(((v.u>>16)&0x8000)|((((v.u>>23)&255)? ((v.u>>23)&255)-112:0)<<10)|((v.u>>13)&0x3ff)); return h; }
