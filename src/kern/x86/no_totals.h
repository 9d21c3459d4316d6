/* The totals of avx2_products.h for products whose sums have 32 bits, and need none. Part of
 * avx512_products.h and vnni_products.h, which define product and sums. */
#ifndef QUIRE_KERN_X86_NO_TOTALS_H
#define QUIRE_KERN_X86_NO_TOTALS_H

typedef int totals;

INLINE int slices_at_once(const product kind, const int most, const int by) {
    return (void)kind, (void)most, (void)by, 1;
}
INLINE totals no_totals(void) { return 0; }
INLINE void add_to_total(const product kind, totals *total, sums *x) {
    (void)kind, (void)total, (void)x;
}
INLINE sums all_of(const product kind, totals total, sums x) { return (void)kind, (void)total, x; }

#endif
