/* Where the codes of a page lie: atoms, tiles and slabs.
 *
 * An atom is 16 bytes: 2 rows x 8 bytes. K: row = token, bytes = 8 dims. V: row = channel, bytes
 * = 8 tokens. One field of an atom (its low nibbles, say) is one operand of an 8-deep integer
 * matrix instruction, and atoms lie so that lane 4r+c of a GPU warp finds its own at base +
 * 16*lane:
 *
 *     [row pair r: 0..7][column c: 0..3][16 bytes]        the four columns of a row pair are one
 *                                                         64-byte line
 *
 * No code section has a padding bit, for any width and any head size: the last group of columns
 * is simply narrower.
 */
#include "codec/layout.h"

#include "quire.h"

enum { T = QUIRE_PAGE_TOKENS };

/* A code is one bit field, or two: 3-bit codes of token tile 3 (K) or slot 3 (V) use the bits that
 * the others leave over. Mixed blocks split the same bytes elsewhere: 5|3 for 4|4, and 4|2 for 3|3.
 */
typedef struct place {
    size_t byte, high_byte;
    int shift, bits, high_shift, high_bits; /* high_bits 0: one field */
} place;

static inline place one(size_t byte, int shift, int bits) {
    return (place){byte, 0, shift, bits, 0, 0};
}

static inline place two(size_t byte, int shift, int bits, size_t high_byte, int high_shift,
                        int high_bits) {
    return (place){byte, high_byte, shift, bits, high_shift, high_bits};
}

static inline place k_place(int bits, int n_mixed, int dim, int t, int d) {
    const int tile = t / 16, r = t % 16 / 2, octet = d / 8, block = d / 16, hi = octet % 2;
    const int more = block < n_mixed; /* bits, for the low octet; the high one has as many fewer */
    /* Below 8 bits dims are stored 0 2 1 3 in each four bytes: a 16-bit mask then yields
     * neighbours on the GPU. */
    const int j = bits == 8 ? d % 8 : (d & 4) | (d & 1) << 1 | (d >> 1 & 1);
    const size_t at = (size_t)(t % 2 * 8 + j);
    switch (bits) {
    case 8:
        return one((size_t)tile * 16 * (size_t)dim + quire__k_atom(dim / 8, 1, octet, 0, r) + at, 0,
                   8);
    case 4:
        return one((size_t)tile * 8 * (size_t)dim + quire__k_atom(dim / 16, 1, block, 0, r) + at,
                   (4 + more) * hi, hi ? 4 - more : 4 + more);
    case 2:
        return one(quire__k_atom(dim / 8, 1, octet, 0, r) + at, 2 * tile, 2);
    case 1:
        return one(quire__k_atom(dim / 16, 1, block, 0, r) + at, tile + 4 * hi, 1);
    default:
        if (tile < 3)
            return one(quire__k_atom(dim / 16, 3, block, tile, r) + at, (3 + more) * hi,
                       hi ? 3 - more : 3 + more);
        if (more && hi)
            return one(quire__k_atom(dim / 16, 3, block, 1, r) + at, 6, 2);
        return two(quire__k_atom(dim / 16, 3, block, hi, r) + at, 6, 2,
                   quire__k_atom(dim / 16, 3, block, 2, r) + at, 6 + hi, 1 + more);
    }
}

static inline place v_place(int bits, int dim, int t, int channel) {
    const int half = t / 32, y = t / 16 % 2, c = t % 16 / 4, r = channel % 16 / 2,
              n_tiles = dim / 16;
    const int share = quire__v_share(bits);
    int tile = channel / 16, first = tile / share * share, run = share;
    while (first + run > n_tiles ||
           tile >= first + run) { /* the tail: runs of share/2, .., 1 tiles */
        if (first + run <= n_tiles)
            first += run;
        run /= 2;
    }
    /* In a short run the free slots hold other columns of the same tiles. */
    const int columns = 4 * run / share, slot = tile - first + run * (c / columns);
    const size_t base = (size_t)first * 16 * T * (size_t)bits / 8, slab = (size_t)(128 * columns);
    const size_t at =
        base + (size_t)((r * columns + c % columns) * 16 + channel % 2 * 8 + 4 * y + t % 4);
    switch (bits) {
    case 8:
        return one(at + (size_t)half * slab, 0, 8);
    case 4:
        return one(at, 4 * half, 4);
    case 2:
        return one(at, 2 * half + 4 * slot, 2);
    default:
        if (slot < 3)
            return one(at + (size_t)slot * slab, 3 * half, 3);
        return two(at + (size_t)half * slab, 6, 2, at + 2 * slab, 6 + half, 1);
    }
}

static inline void put(uint8_t *section, place p, unsigned code) {
    section[p.byte] = (uint8_t)(section[p.byte] | (code & ((1u << p.bits) - 1)) << p.shift);
    if (p.high_bits)
        section[p.high_byte] =
            (uint8_t)(section[p.high_byte] | (code >> p.bits & ((1u << p.high_bits) - 1))
                                                 << p.high_shift);
}

static inline uint8_t get(const uint8_t *section, place p) {
    unsigned code = section[p.byte] >> p.shift & ((1u << p.bits) - 1);
    if (p.high_bits)
        code |= (section[p.high_byte] >> p.high_shift & ((1u << p.high_bits) - 1)) << p.bits;
    return (uint8_t)code;
}

#define K_PLACE(bits) k_place(bits, n_mixed, dim, t, d)
#define V_PLACE(bits) v_place(bits, dim, t, d)

/* One loop per width, so that the compiler sees `bits` as a constant. */
#define FOR_EACH_CODE(place_of, bits, statement)                                                   \
    for (int d = 0; d < dim; d++)                                                                  \
        for (int t = 0; t < T; t++) {                                                              \
            const place p = place_of(bits);                                                        \
            statement;                                                                             \
        }                                                                                          \
    break

#define FOR_EACH_WIDTH(place_of, statement)                                                        \
    switch (bits) {                                                                                \
    case 8:                                                                                        \
        FOR_EACH_CODE(place_of, 8, statement);                                                     \
    case 4:                                                                                        \
        FOR_EACH_CODE(place_of, 4, statement);                                                     \
    case 3:                                                                                        \
        FOR_EACH_CODE(place_of, 3, statement);                                                     \
    case 2:                                                                                        \
        FOR_EACH_CODE(place_of, 2, statement);                                                     \
    case 1:                                                                                        \
        FOR_EACH_CODE(place_of, 1, statement);                                                     \
    }

void quire__k_pack(int bits, int n_mixed, int dim, const uint8_t *codes, uint8_t *section) {
    FOR_EACH_WIDTH(K_PLACE, put(section, p, codes[t * dim + d]))
}

void quire__k_unpack(int bits, int n_mixed, int dim, const uint8_t *section, uint8_t *codes) {
    FOR_EACH_WIDTH(K_PLACE, codes[t * dim + d] = get(section, p))
}

void quire__v_pack(int bits, int dim, const uint8_t *codes, uint8_t *section) {
    FOR_EACH_WIDTH(V_PLACE, put(section, p, codes[t * dim + d]))
}

void quire__v_unpack(int bits, int dim, const uint8_t *section, uint8_t *codes) {
    FOR_EACH_WIDTH(V_PLACE, codes[t * dim + d] = get(section, p))
}
