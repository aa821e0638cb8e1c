/* Kernels of asyncps_ext.wire: CRC-32C, the bytes of a frame header, the moving of rows. */
#ifndef ASYNCPS_WIRE_KERNELS_H
#define ASYNCPS_WIRE_KERNELS_H

#include "variants.h"

enum { APS_HEADER_SIZE = 72, APS_CRC_AT = 68, APS_VERSION = 1 };
#define APS_MAGIC 0x31535041u /* "APS1", little-endian */

typedef struct {
    uint8_t kind;
    uint16_t flags;
    uint32_t incarnation, store, unit, hyper;
    int32_t priority;
    uint64_t request, clock, table_bytes, payload_bytes, acked;
} aps_header;

typedef struct {
    char *data; /* NULL: this row has been moved already */
    size_t size;
} aps_row;

/* Little-endian on any machine; compilers make one move of each. */
static APS_INLINE uint32_t aps_get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static APS_INLINE uint64_t aps_get64(const uint8_t *p)
{
    return (uint64_t)aps_get32(p) | (uint64_t)aps_get32(p + 4) << 32;
}

static APS_INLINE void aps_put32(uint8_t *p, uint32_t x)
{
    p[0] = (uint8_t)x;
    p[1] = (uint8_t)(x >> 8);
    p[2] = (uint8_t)(x >> 16);
    p[3] = (uint8_t)(x >> 24);
}

static APS_INLINE void aps_put64(uint8_t *p, uint64_t x)
{
    aps_put32(p, (uint32_t)x);
    aps_put32(p + 4, (uint32_t)(x >> 32));
}

/* CRC-32C (Castagnoli), reflected polynomial 0x82f63b78. The table form takes eight bytes a step
 * ("slicing by 8", Kounavis and Berry, 2005). Both work on the inverted register. */
static uint32_t aps_crc_slices[8][256];

static void aps_crc_init(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0x82f63b78u & ((uint32_t)0 - (crc & 1u)));
        aps_crc_slices[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int k = 1; k < 8; k++) {
            const uint32_t shorter = aps_crc_slices[k - 1][byte];
            aps_crc_slices[k][byte] = (shorter >> 8) ^ aps_crc_slices[0][shorter & 0xffu];
        }
}

static uint32_t aps_crc_baseline(uint32_t crc, const uint8_t *p, size_t n)
{
    for (; n >= 8; n -= 8, p += 8) {
        const uint32_t low = crc ^ aps_get32(p), high = aps_get32(p + 4);
        crc = aps_crc_slices[7][low & 0xffu] ^ aps_crc_slices[6][(low >> 8) & 0xffu] ^
              aps_crc_slices[5][(low >> 16) & 0xffu] ^ aps_crc_slices[4][low >> 24] ^
              aps_crc_slices[3][high & 0xffu] ^ aps_crc_slices[2][(high >> 8) & 0xffu] ^
              aps_crc_slices[1][(high >> 16) & 0xffu] ^ aps_crc_slices[0][high >> 24];
    }
    for (; n > 0; n--, p++)
        crc = (crc >> 8) ^ aps_crc_slices[0][(crc ^ *p) & 0xffu];
    return crc;
}

#if APS_HAVE_LEVELS
/* SSE4.2 is older than x86-64-v3, so this one is asked for by itself. */
__attribute__((target("sse4.2"))) static uint32_t aps_crc_sse42(uint32_t crc, const uint8_t *p,
                                                                size_t n)
{
    uint64_t wide = crc;
    for (; n >= 8; n -= 8, p += 8)
        wide = _mm_crc32_u64(wide, aps_get64(p));
    crc = (uint32_t)wide;
    if (n >= 4) {
        crc = _mm_crc32_u32(crc, aps_get32(p));
        n -= 4;
        p += 4;
    }
    for (; n > 0; n--, p++)
        crc = _mm_crc32_u8(crc, *p);
    return crc;
}
#endif

typedef uint32_t (*aps_crc)(uint32_t crc, const uint8_t *p, size_t n);

typedef struct {
    const char *name;
    aps_crc crc;
} aps_wire_table;

/* Best first; NULL behind the last one that this processor can run. */
static const aps_wire_table *aps_wire_table_at(int i)
{
    static const aps_wire_table baseline = { "baseline", aps_crc_baseline };
#if APS_HAVE_LEVELS
    static const aps_wire_table sse42 = { "sse4.2", aps_crc_sse42 };
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2"))
        return i == 0 ? &sse42 : i == 1 ? &baseline : NULL;
#endif
    return i == 0 ? &baseline : NULL;
}

static void aps_header_write(uint8_t *p, const aps_header *h, aps_crc crc)
{
    aps_put32(p, APS_MAGIC);
    p[4] = APS_VERSION;
    p[5] = h->kind;
    p[6] = (uint8_t)h->flags;
    p[7] = (uint8_t)(h->flags >> 8);
    aps_put32(p + 8, h->incarnation);
    aps_put32(p + 12, h->store);
    aps_put64(p + 16, h->request);
    aps_put32(p + 24, h->unit);
    aps_put32(p + 28, (uint32_t)h->priority);
    aps_put64(p + 32, h->clock);
    aps_put64(p + 40, h->table_bytes);
    aps_put64(p + 48, h->payload_bytes);
    aps_put64(p + 56, h->acked);
    aps_put32(p + 64, h->hyper);
    aps_put32(p + APS_CRC_AT, ~crc(0xffffffffu, p, APS_CRC_AT));
}

static void aps_header_read(aps_header *h, const uint8_t *p)
{
    const uint32_t priority = aps_get32(p + 28);
    h->kind = p[5];
    h->flags = (uint16_t)(p[6] | p[7] << 8);
    h->incarnation = aps_get32(p + 8);
    h->store = aps_get32(p + 12);
    h->request = aps_get64(p + 16);
    h->unit = aps_get32(p + 24);
    memcpy(&h->priority, &priority, sizeof priority);
    h->clock = aps_get64(p + 32);
    h->table_bytes = aps_get64(p + 40);
    h->payload_bytes = aps_get64(p + 48);
    h->acked = aps_get64(p + 56);
    h->hyper = aps_get32(p + 64);
}

/* memmove: a caller may hand in a row that lies in the buffer itself. */
static void aps_rows_gather(char *buffer, const aps_row *rows, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        if (rows[i].data != NULL)
            memmove(buffer, rows[i].data, rows[i].size);
        buffer += rows[i].size;
    }
}

static void aps_rows_scatter(const char *buffer, const aps_row *rows, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        memmove(rows[i].data, buffer, rows[i].size);
        buffer += rows[i].size;
    }
}

/* size *= factor; 0 when the product does not fit. */
static APS_INLINE int aps_multiply(size_t *size, size_t factor)
{
    return !__builtin_mul_overflow(*size, factor, size);
}

#endif
