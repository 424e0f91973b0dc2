#pragma once
struct __nv_bfloat16 { unsigned short x; };

static inline __nv_bfloat16 __float2bfloat16(float f){ union{float f; unsigned u;} v={f}; __nv_bfloat16 h; h.x=v.u>>16; return h; }
