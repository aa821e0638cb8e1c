/* The loops of asyncps_ext.reduce; included once for each variant (each_variant.h), where
 * APS_VECTORS says that there are instructions that convert float16.
 */

#define APS_ADD(name, T)                                                                     \
    APS_TARGET static void APS_FN(name)(void *acc_, const void *x_, ptrdiff_t n)             \
    {                                                                                        \
        T *acc = (T *)acc_;                                                                  \
        const T *x = (const T *)x_;                                                          \
        APS_INDEPENDENT                                                                      \
        for (ptrdiff_t i = 0; i < n; i++)                                                    \
            acc[i] = (T)(acc[i] + x[i]);                                                     \
    }

APS_ADD(add_f32, aps_f32)
APS_ADD(add_f64, aps_f64)
APS_ADD(add_u8, aps_u8)
APS_ADD(add_u32, aps_u32)
APS_ADD(add_u64, aps_u64)
#undef APS_ADD

/* out = parts[0] + parts[1] + ..., at least two, block by block. The last is added into `out`, which
 * may be any of the parts: of a block all others have been read by then. */
#define APS_ADD_ALL(name, T)                                                                 \
    APS_TARGET static void APS_FN(name)(void *out_, const void *const *parts,                \
                                        ptrdiff_t count, ptrdiff_t n)                        \
    {                                                                                        \
        T acc[APS_SUM_BLOCK];                                                                \
        for (ptrdiff_t begin = 0; begin < n; begin += APS_SUM_BLOCK) {                       \
            const ptrdiff_t m = n - begin < APS_SUM_BLOCK ? n - begin : APS_SUM_BLOCK;       \
            const T *a = (const T *)parts[0] + begin;                                        \
            for (ptrdiff_t p = 1; p < count; p++) {                                          \
                const T *x = (const T *)parts[p] + begin;                                    \
                T *to = p == count - 1 ? (T *)out_ + begin : acc;                            \
                APS_INDEPENDENT                                                              \
                for (ptrdiff_t i = 0; i < m; i++)                                            \
                    to[i] = (T)(a[i] + x[i]);                                                \
                a = acc;                                                                     \
            }                                                                                \
        }                                                                                    \
    }

APS_ADD_ALL(add_all_f32, aps_f32)
APS_ADD_ALL(add_all_f64, aps_f64)
APS_ADD_ALL(add_all_u8, aps_u8)
APS_ADD_ALL(add_all_u32, aps_u32)
APS_ADD_ALL(add_all_u64, aps_u64)
#undef APS_ADD_ALL

APS_TARGET static void APS_FN(scale_f32)(void *x_, double factor_, ptrdiff_t n)
{
    aps_f32 *x = (aps_f32 *)x_;
    const float factor = (float)factor_;
    APS_INDEPENDENT
    for (ptrdiff_t i = 0; i < n; i++)
        x[i] = x[i] * factor;
}

APS_TARGET static void APS_FN(scale_f64)(void *x_, double factor, ptrdiff_t n)
{
    aps_f64 *x = (aps_f64 *)x_;
    APS_INDEPENDENT
    for (ptrdiff_t i = 0; i < n; i++)
        x[i] = x[i] * factor;
}

/* f16: how many elements the instructions took; the plain loops below do the rest (or all). */

#if APS_VECTORS
APS_TARGET static APS_INLINE __m256 APS_FN(load_f16)(const aps_u16 *x)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)x));
}
#endif

APS_TARGET static void APS_FN(add_f16)(void *acc_, const void *x_, ptrdiff_t n)
{
    aps_f32 *acc = (aps_f32 *)acc_;
    const aps_u16 *x = (const aps_u16 *)x_;
    ptrdiff_t i = 0;
#if APS_VECTORS
    for (; i + 8 <= n; i += 8) {
        __m256 sum = _mm256_add_ps(_mm256_loadu_ps((const float *)(acc + i)),
                                   APS_FN(load_f16)(x + i));
        _mm256_storeu_ps((float *)(acc + i), sum);
    }
#endif
    APS_INDEPENDENT
    for (ptrdiff_t j = i; j < n; j++)
        acc[j] = acc[j] + aps_f16_to_f32(x[j]);
}

APS_TARGET static void APS_FN(widen_f16)(void *out_, const void *x_, ptrdiff_t n)
{
    aps_f32 *out = (aps_f32 *)out_;
    const aps_u16 *x = (const aps_u16 *)x_;
    ptrdiff_t i = 0;
#if APS_VECTORS
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps((float *)(out + i), APS_FN(load_f16)(x + i));
#endif
    APS_INDEPENDENT
    for (ptrdiff_t j = i; j < n; j++)
        out[j] = aps_f16_to_f32(x[j]);
}

APS_TARGET static void APS_FN(narrow_f16)(void *out_, const void *x_, ptrdiff_t n)
{
    aps_u16 *out = (aps_u16 *)out_;
    const aps_f32 *x = (const aps_f32 *)x_;
    ptrdiff_t i = 0;
#if APS_VECTORS
    for (; i + 8 <= n; i += 8) {
        __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps((const float *)(x + i)),
                                       _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(void *)(out + i), half);
    }
#endif
    APS_INDEPENDENT
    for (ptrdiff_t j = i; j < n; j++)
        out[j] = aps_f32_to_f16(x[j]);
}

APS_TARGET static void APS_FN(add_bf16)(void *acc_, const void *x_, ptrdiff_t n)
{
    aps_f32 *acc = (aps_f32 *)acc_;
    const aps_u16 *x = (const aps_u16 *)x_;
    APS_INDEPENDENT
    for (ptrdiff_t i = 0; i < n; i++)
        acc[i] = acc[i] + aps_as_f32((uint32_t)x[i] << 16);
}

APS_TARGET static void APS_FN(widen_bf16)(void *out_, const void *x_, ptrdiff_t n)
{
    aps_u32 *out = (aps_u32 *)out_;
    const aps_u16 *x = (const aps_u16 *)x_;
    APS_INDEPENDENT
    for (ptrdiff_t i = 0; i < n; i++)
        out[i] = (uint32_t)x[i] << 16;
}

APS_TARGET static void APS_FN(narrow_bf16)(void *out_, const void *x_, ptrdiff_t n)
{
    aps_u16 *out = (aps_u16 *)out_;
    const aps_u32 *x = (const aps_u32 *)x_;
    APS_INDEPENDENT
    for (ptrdiff_t i = 0; i < n; i++)
        out[i] = aps_f32_bits_to_bf16(x[i]);
}

static const aps_reduce_table APS_FN(table) = {
    APS_VARIANT,
    { APS_FN(add_f32), APS_FN(add_f64), APS_FN(add_u8), APS_FN(add_u8), APS_FN(add_u32),
      APS_FN(add_u64) },
    { APS_FN(add_all_f32), APS_FN(add_all_f64), APS_FN(add_all_u8), APS_FN(add_all_u8),
      APS_FN(add_all_u32), APS_FN(add_all_u64) },
    { APS_FN(scale_f32), APS_FN(scale_f64) },
    APS_FN(add_f16), APS_FN(add_bf16), APS_FN(widen_f16), APS_FN(widen_bf16),
    APS_FN(narrow_f16), APS_FN(narrow_bf16),
};
