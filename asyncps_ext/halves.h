/* Bits of float32, and float16 and bfloat16 from and to it, one element at a time. */
#ifndef ASYNCPS_HALVES_H
#define ASYNCPS_HALVES_H

#include "variants.h"

static APS_INLINE float aps_as_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static APS_INLINE uint32_t aps_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* All bits set where a claim holds: selections are masks, so that loops stay free of branches. */
static APS_INLINE uint32_t aps_mask(int claim)
{
    return (uint32_t)0 - (uint32_t)(claim != 0);
}

static APS_INLINE uint32_t aps_pick(uint32_t mask, uint32_t yes, uint32_t no)
{
    return (yes & mask) | (no & ~mask);
}

/* Exact. A signalling NaN becomes quiet and keeps its payload, as the F16C instruction does. */
static APS_INLINE float aps_f16_to_f32(uint16_t half)
{
    const int32_t magnitude = half & 0x7fff;
    const uint32_t shifted = (uint32_t)magnitude << 13;
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t normal = shifted + 0x38000000u;       /* rebias the exponent: 127 - 15 */
    const uint32_t special = shifted | 0x7f800000u;      /* inf and NaN */
    const uint32_t quiet = 0x00400000u & aps_mask(magnitude > 0x7c00);
    /* a subnormal half is magnitude * 2^-24; reading it as 2^-14 + that and taking 2^-14 away */
    const float tiny = aps_as_f32(shifted + 0x38800000u) - aps_as_f32(0x38800000u);
    uint32_t bits = aps_pick(aps_mask(magnitude < 0x0400), aps_f32_bits(tiny), normal);
    bits = aps_pick(aps_mask(magnitude >= 0x7c00), special | quiet, bits);
    return aps_as_f32(bits | sign);
}

/* The magnitude of a number below 2^16 as float16, to the nearest, ties to even. */
static APS_INLINE uint32_t aps_number_to_f16(uint32_t magnitude)
{
    const int32_t order = (int32_t)magnitude;            /* signed compares exist as vectors */
    const uint32_t odd = (magnitude >> 13) & 1u;
    const uint32_t normal = (magnitude - 0x38000000u + 0x0fffu + odd) >> 13;
    /* below 2^-14 the spacing is 2^-24, which is that of floats in [0.5, 1): adding 0.5 rounds */
    const uint32_t tiny = aps_f32_bits(aps_as_f32(magnitude) + 0.5f) - 0x3f000000u;
    return aps_pick(aps_mask(order < 0x38800000), tiny, normal);
}

/* To the nearest, ties to even. NaN: quiet, sign and the upper payload bits kept (as F16C). */
static APS_INLINE uint16_t aps_f32_to_f16(float value)
{
    const uint32_t bits = aps_f32_bits(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const int32_t order = (int32_t)magnitude;
    const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
    uint32_t half = aps_number_to_f16(magnitude);
    half = aps_pick(aps_mask(order >= 0x47800000), 0x7c00u, half);
    half = aps_pick(aps_mask(order > 0x7f800000), nan, half);
    return (uint16_t)(half | ((bits >> 16) & 0x8000u));
}

/* To the nearest, ties to even, large values to inf. NaN: quiet, sign and payload kept. */
static APS_INLINE uint16_t aps_f32_bits_to_bf16(uint32_t bits)
{
    const int32_t order = (int32_t)(bits & 0x7fffffffu);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x0040u;
    return (uint16_t)aps_pick(aps_mask(order > 0x7f800000), nan, rounded);
}

/* What codecs send and keep. A number is sent as the largest half where it would become infinite,
 * and there is one NaN: which one a sum or a difference makes differs between processors and with
 * the order of the operands. */
#define APS_NAN 0x7fc00000u

/* The least bits of a magnitude that rounds to an infinity. */
#define APS_OVER_F16 0x477ff000
#define APS_OVER_BF16 0x7f7f8000

static APS_INLINE uint16_t aps_sent_f16(float x)
{
    const uint32_t bits = aps_f32_bits(x), sign = (bits >> 16) & 0x8000u;
    const int32_t order = (int32_t)(bits & 0x7fffffffu);
    const uint32_t over = 0x7c00u + aps_mask(order < 0x7f800000); /* the number before */
    uint32_t half = aps_number_to_f16(bits & 0x7fffffffu);
    half = aps_pick(aps_mask(order >= APS_OVER_F16), over, half) | sign;
    return (uint16_t)aps_pick(aps_mask(order > 0x7f800000), 0x7e00u, half);
}

static APS_INLINE uint16_t aps_sent_bf16(float x)
{
    const uint32_t bits = aps_f32_bits(x);
    const int32_t order = (int32_t)(bits & 0x7fffffffu);
    uint32_t half = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    half += aps_mask(order >= APS_OVER_BF16) & aps_mask(order < 0x7f800000); /* the number before */
    return (uint16_t)aps_pick(aps_mask(order > 0x7f800000), 0x7fc0u, half);
}

/* What stays of x when its half is sent: of an infinity nothing that is a number. */
static APS_INLINE float aps_left_half(float x, float sent)
{
    const int32_t order = (int32_t)(aps_f32_bits(x) & 0x7fffffffu);
    const uint32_t left = aps_f32_bits(x - sent);
    return aps_as_f32(aps_pick(aps_mask(order < 0x7f800000), left, APS_NAN));
}

#endif
