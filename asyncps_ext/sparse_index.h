/* From row ids to slots: a hash table that never moves as a whole.
 *
 * Extendible hashing (Fagin, Nievergelt, Pippenger, Strong, 1979): the upper bits of an id's hash
 * choose a segment through a directory, the lower ones a cell in it, with linear probing. A segment
 * that is full splits in two, so growing costs the work of one segment (some 6000 ids) whatever the
 * size of the whole; only the directory, 8 bytes a segment, is ever copied. What differs: small
 * segments double first, and the directory grows only in proportion to the ids, so that ids that
 * collide by chance or by design cost a large segment and no directory of 2^60.
 */
#ifndef ASYNCPS_SPARSE_INDEX_H
#define ASYNCPS_SPARSE_INDEX_H

#include <stdlib.h>

#include "variants.h"

#define APS_FIRST_CELLS 64
#define APS_SEGMENT_CELLS 8192
#define APS_BATCH 16

typedef struct {
    int64_t id; /* -1: empty */
    int64_t slot;
} aps_cell;

typedef struct {
    size_t cells, used;
    int depth; /* how many upper bits of the hash all ids here share */
    aps_cell cell[];
} aps_segment;

typedef struct {
    aps_segment **directory; /* 2^depth entries; several may name one segment */
    int depth;
    int64_t count;
    uint64_t seed;
    size_t bytes;
} aps_index;

/* The finisher of SplitMix64 (Steele, Lea, Flood, 2014), a bijection, over a secret offset. */
static APS_INLINE uint64_t aps_hash(const aps_index *x, int64_t id)
{
    uint64_t h = (uint64_t)id + x->seed;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
    return h ^ (h >> 31);
}

/* The upper `depth` bits; a shift by 64 is undefined, so one bit goes first. */
static APS_INLINE uint64_t aps_upper(uint64_t hash, int depth)
{
    return (hash >> 1) >> (63 - depth);
}

static aps_segment *aps_segment_new(aps_index *x, size_t cells, int depth)
{
    const size_t bytes = sizeof(aps_segment) + cells * sizeof(aps_cell);
    aps_segment *s = (aps_segment *)malloc(bytes);
    if (s == NULL)
        return NULL;
    memset(s->cell, 0xff, cells * sizeof(aps_cell));
    s->cells = cells;
    s->used = 0;
    s->depth = depth;
    x->bytes += bytes;
    return s;
}

static void aps_segment_free(aps_index *x, aps_segment *s)
{
    x->bytes -= sizeof(aps_segment) + s->cells * sizeof(aps_cell);
    free(s);
}

static int aps_index_init(aps_index *x, uint64_t seed)
{
    memset(x, 0, sizeof *x);
    x->seed = seed;
    x->directory = (aps_segment **)malloc(sizeof *x->directory);
    if (x->directory == NULL)
        return -1;
    x->bytes = sizeof *x->directory;
    x->directory[0] = aps_segment_new(x, APS_FIRST_CELLS, 0);
    return x->directory[0] == NULL ? -1 : 0;
}

static void aps_index_free(aps_index *x)
{
    if (x->directory == NULL)
        return;
    for (size_t i = 0; i < (size_t)1 << x->depth && x->directory[i] != NULL;) {
        aps_segment *s = x->directory[i];
        i += (size_t)1 << (x->depth - s->depth);
        free(s);
    }
    free(x->directory);
    x->directory = NULL;
}

/* The cell of an id, or the empty one where it would stand. */
static APS_INLINE aps_cell *aps_cell_of(aps_segment *s, uint64_t hash, int64_t id)
{
    size_t at = hash & (s->cells - 1);
    while (s->cell[at].id != id && s->cell[at].id != -1)
        at = (at + 1) & (s->cells - 1);
    return &s->cell[at];
}

static void aps_segment_move(aps_index *x, aps_segment *to, const aps_cell *cell)
{
    *aps_cell_of(to, aps_hash(x, cell->id), cell->id) = *cell;
    to->used++;
}

/* Let the directory name `s` wherever ids of its prefix are looked for. */
static void aps_name(aps_index *x, aps_segment *s, uint64_t prefix)
{
    const int free_bits = x->depth - s->depth;
    const size_t many = (size_t)1 << free_bits;
    for (size_t i = 0; i < many; i++)
        x->directory[(prefix << free_bits) + i] = s;
}

static int aps_double_segment(aps_index *x, aps_segment *s, uint64_t hash)
{
    aps_segment *larger = aps_segment_new(x, 2 * s->cells, s->depth);
    if (larger == NULL)
        return -1;
    for (size_t i = 0; i < s->cells; i++)
        if (s->cell[i].id != -1)
            aps_segment_move(x, larger, &s->cell[i]);
    aps_name(x, larger, aps_upper(hash, s->depth));
    aps_segment_free(x, s);
    return 0;
}

static int aps_double_directory(aps_index *x)
{
    const size_t many = (size_t)1 << x->depth;
    aps_segment **larger = (aps_segment **)malloc(2 * many * sizeof *larger);
    if (larger == NULL)
        return -1;
    for (size_t i = 0; i < many; i++)
        larger[2 * i] = larger[2 * i + 1] = x->directory[i];
    free(x->directory);
    x->directory = larger;
    x->bytes += many * sizeof *larger;
    x->depth++;
    return 0;
}

/* Make room in the segment where an id of this hash belongs. -1: no memory, nothing has changed. */
static int aps_make_room(aps_index *x, aps_segment *s, uint64_t hash)
{
    if (s->cells < APS_SEGMENT_CELLS)
        return aps_double_segment(x, s, hash);
    if (s->depth == x->depth) {
        /* Fair hashes leave segments over a third full: more than 8 entries each is bad luck. */
        const uint64_t fair = 2 + 8 * ((uint64_t)x->count / (APS_SEGMENT_CELLS / 2));
        if ((uint64_t)2 << x->depth > fair)
            return aps_double_segment(x, s, hash);
        if (aps_double_directory(x) < 0)
            return -1;
    }
    aps_segment *halves[2];
    halves[0] = aps_segment_new(x, s->cells, s->depth + 1);
    halves[1] = aps_segment_new(x, s->cells, s->depth + 1);
    if (halves[0] == NULL || halves[1] == NULL) {
        for (int i = 0; i < 2; i++)
            if (halves[i] != NULL)
                aps_segment_free(x, halves[i]);
        return -1;
    }
    for (size_t i = 0; i < s->cells; i++) {
        if (s->cell[i].id == -1)
            continue;
        const uint64_t upper = aps_upper(aps_hash(x, s->cell[i].id), s->depth + 1);
        aps_segment_move(x, halves[upper & 1], &s->cell[i]);
    }
    const uint64_t prefix = aps_upper(hash, s->depth);
    aps_name(x, halves[0], 2 * prefix);
    aps_name(x, halves[1], 2 * prefix + 1);
    aps_segment_free(x, s);
    return 0;
}

/* The slot of an id; a new id gets the next one. -1: no memory. */
static int64_t aps_index_insert_one(aps_index *x, int64_t id, uint64_t hash)
{
    for (;;) {
        aps_segment *s = x->directory[aps_upper(hash, x->depth)];
        aps_cell *cell = aps_cell_of(s, hash, id);
        if (cell->id == id)
            return cell->slot;
        if ((s->used + 1) * 4 <= s->cells * 3) {
            cell->id = id;
            cell->slot = x->count++;
            s->used++;
            return cell->slot;
        }
        if (aps_make_room(x, s, hash) < 0)
            return -1;
    }
}

/* Hashes of a few ids at once, their cells asked for: the misses overlap. */
static APS_INLINE ptrdiff_t aps_batch(const aps_index *x, const aps_i64 *ids, ptrdiff_t n,
                                      uint64_t *hashes)
{
    const ptrdiff_t many = n < APS_BATCH ? n : APS_BATCH;
    for (ptrdiff_t i = 0; i < many; i++) {
        hashes[i] = aps_hash(x, ids[i]);
        __builtin_prefetch(x->directory[aps_upper(hashes[i], x->depth)]);
    }
    for (ptrdiff_t i = 0; i < many; i++) {
        const aps_segment *s = x->directory[aps_upper(hashes[i], x->depth)];
        __builtin_prefetch(&s->cell[hashes[i] & (s->cells - 1)]);
    }
    return many;
}

static void aps_index_lookup(const aps_index *x, const aps_i64 *ids, ptrdiff_t n, aps_i64 *slots)
{
    uint64_t hashes[APS_BATCH];
    for (ptrdiff_t at = 0; at < n;) {
        const ptrdiff_t many = aps_batch(x, ids + at, n - at, hashes);
        for (ptrdiff_t i = 0; i < many; i++, at++) {
            aps_segment *s = x->directory[aps_upper(hashes[i], x->depth)];
            /* A negative id is never there, and -1 would find an empty cell: its slot is -1 too. */
            const aps_cell *cell = aps_cell_of(s, hashes[i], ids[at]);
            slots[at] = cell->slot;
        }
    }
}

static int aps_index_insert(aps_index *x, const aps_i64 *ids, ptrdiff_t n, aps_i64 *slots)
{
    uint64_t hashes[APS_BATCH];
    for (ptrdiff_t at = 0; at < n;) {
        const ptrdiff_t many = aps_batch(x, ids + at, n - at, hashes);
        for (ptrdiff_t i = 0; i < many; i++, at++) {
            const int64_t slot = aps_index_insert_one(x, ids[at], hashes[i]);
            if (slot < 0)
                return -1;
            slots[at] = slot;
        }
    }
    return 0;
}

/* ids[slot] of each id. */
static void aps_index_items(const aps_index *x, aps_i64 *ids)
{
    for (size_t i = 0; i < (size_t)1 << x->depth;) {
        const aps_segment *s = x->directory[i];
        for (size_t c = 0; c < s->cells; c++)
            if (s->cell[c].id != -1)
                ids[s->cell[c].slot] = s->cell[c].id;
        i += (size_t)1 << (x->depth - s->depth);
    }
}

/* ------------------------------------------------------------ the same for a range of known ids */

/* places[id - first] is the slot and one: memory that was never written reads as absent. */
typedef struct {
    uint32_t *places;
    int64_t first, rows, count;
} aps_range;

/* Places lie apart: those a few turns ahead are asked for, so that the misses overlap. */
#define APS_PLACES_AHEAD 24

/* Ids have been checked, but somebody may change them meanwhile: one that is outside by now gets no
 * place, and slot -1.
 */
static APS_INLINE uint32_t *aps_range_place(const aps_range *x, int64_t id)
{
    const uint64_t at = (uint64_t)id - (uint64_t)x->first;
    return at < (uint64_t)x->rows ? &x->places[at] : NULL;
}

/* How many were there before the first that is absent; all n as a rule. */
static ptrdiff_t aps_range_known(const aps_range *x, const aps_i64 *ids, ptrdiff_t n,
                                 aps_i64 *slots)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        if (i + APS_PLACES_AHEAD < n)
            __builtin_prefetch(aps_range_place(x, ids[i + APS_PLACES_AHEAD]));
        const uint32_t *place = aps_range_place(x, ids[i]);
        if (place == NULL || *place == 0)
            return i;
        slots[i] = (int64_t)*place - 1;
    }
    return n;
}

static void aps_range_lookup(const aps_range *x, const aps_i64 *ids, ptrdiff_t n, aps_i64 *slots)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        const uint32_t *place = aps_range_place(x, ids[i]);
        slots[i] = place == NULL ? -1 : (int64_t)*place - 1;
    }
}

static void aps_range_insert(aps_range *x, const aps_i64 *ids, ptrdiff_t n, aps_i64 *slots)
{
    for (ptrdiff_t i = aps_range_known(x, ids, n, slots); i < n; i++) {
        uint32_t *place = aps_range_place(x, ids[i]);
        if (place != NULL && *place == 0)
            *place = (uint32_t)++x->count;
        slots[i] = place == NULL ? -1 : (int64_t)*place - 1;
    }
}

static void aps_range_items(const aps_range *x, aps_i64 *ids)
{
    for (int64_t i = 0; i < x->rows; i++)
        if (x->places[i] != 0)
            ids[x->places[i] - 1] = x->first + i;
}

/* The index of the first id outside of low..high-1, or -1. */
static ptrdiff_t aps_outside(const aps_i64 *ids, ptrdiff_t n, int64_t low, int64_t high)
{
    for (ptrdiff_t i = 0; i < n; i++)
        if (ids[i] < low || ids[i] >= high)
            return i;
    return -1;
}

#endif
