/* Rows by number, where they lie: what kernels of tables share. */
#ifndef ASYNCPS_SPARSE_ROWS_H
#define ASYNCPS_SPARSE_ROWS_H

#include "variants.h"

/* Rows lie in blocks of 2^shift rows; a table of one block has a shift beyond every slot. */
#define APS_ONE_BLOCK 62
/* Rows asked for ahead of their turn: about the time of one miss. */
#define APS_AHEAD 12
#define APS_LINE 64

typedef struct {
    char **blocks;
    int shift;
    ptrdiff_t row; /* bytes of a row */
} aps_rows;

static APS_INLINE char *aps_row_at(const aps_rows *t, int64_t slot)
{
    const int64_t within = slot & (((int64_t)1 << t->shift) - 1);
    return t->blocks[slot >> t->shift] + within * t->row;
}

/* At most four lines: the processor itself goes on with a long row. */
static APS_INLINE void aps_ask_for(const char *row, ptrdiff_t bytes)
{
    for (ptrdiff_t at = 0; at < bytes && at < 4 * APS_LINE; at += APS_LINE)
        __builtin_prefetch(row + at);
}

/* -1, or the index of the first slot outside of 0..rows-1. */
static APS_UNUSED ptrdiff_t aps_check_slots(const aps_i64 *slots, ptrdiff_t n, int64_t rows)
{
    for (ptrdiff_t i = 0; i < n; i++)
        if ((uint64_t)slots[i] >= (uint64_t)rows)
            return i;
    return -1;
}

#endif
