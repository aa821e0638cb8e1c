/* One set of kernels, compiled for several instruction sets: what the kernel headers share.
 *
 * each_variant.h includes a kernel body once for each variant; the body ends with that variant's
 * table of function pointers. One table is then chosen, when a module is imported, and can be
 * changed by a test. (target_clones would choose by itself, but cannot be forced.)
 */
#ifndef ASYNCPS_VARIANTS_H
#define ASYNCPS_VARIANTS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Compilers that know the levels of x86-64 by name, in target() and in __builtin_cpu_supports(). */
#if defined(__x86_64__) && defined(__clang__)
#if __clang_major__ >= 18
#define APS_HAVE_LEVELS 1
#endif
#elif defined(__x86_64__) && defined(__GNUC__)
#if __GNUC__ >= 11
#define APS_HAVE_LEVELS 1
#endif
#endif
#ifndef APS_HAVE_LEVELS
#define APS_HAVE_LEVELS 0
#endif

#if APS_HAVE_LEVELS
#include <immintrin.h>
#endif

/* Nothing is carried from one turn of the loop to the next: arrays are either the same or apart. */
#if defined(__clang__)
#define APS_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define APS_INDEPENDENT _Pragma("GCC ivdep")
#else
#define APS_INDEPENDENT
#endif

#define APS_INLINE inline __attribute__((always_inline, unused))
#define APS_UNUSED __attribute__((unused))

#define APS_JOIN_(a, b) a##b
#define APS_JOIN(a, b) APS_JOIN_(a, b)

/* Elements of arrays that may lie at any address. */
#define APS_ANYWHERE __attribute__((aligned(1), may_alias))
typedef float aps_f32 APS_ANYWHERE;
typedef double aps_f64 APS_ANYWHERE;
typedef int8_t aps_i8 APS_ANYWHERE;
typedef int64_t aps_i64 APS_ANYWHERE;
typedef uint8_t aps_u8 APS_ANYWHERE;
typedef uint16_t aps_u16 APS_ANYWHERE;
typedef uint32_t aps_u32 APS_ANYWHERE;
typedef uint64_t aps_u64 APS_ANYWHERE;

/* The numbers that types.pxd gives to dtypes; signed integers wrap as unsigned ones do. */
enum { APS_F32, APS_F64, APS_I8, APS_U8, APS_I32, APS_I64, APS_DTYPES };

/* How many variants this processor can run beside the baseline; a level has all of those below. */
static APS_UNUSED int aps_cpu_level(void)
{
#if APS_HAVE_LEVELS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4"))
        return 2;
    return __builtin_cpu_supports("x86-64-v3") != 0;
#else
    return 0;
#endif
}

/* The tables of each_variant.h, the plainest first. */
#if APS_HAVE_LEVELS
#define APS_TABLES { &aps_baseline_table, &aps_v3_table, &aps_v4_table }
#else
#define APS_TABLES { &aps_baseline_table }
#endif

/* `of` the tables: best first; NULL behind the last one that this processor can run. */
#define APS_TABLE_AT(of, i) (aps_cpu_level() < (i) ? NULL : (of)[aps_cpu_level() - (i)])

#endif
