/* Times what test_kernels checks. */
#ifndef QUIRE_TESTS_KERNEL_BENCH_H
#define QUIRE_TESTS_KERNEL_BENCH_H

/* Prints ns per call of every entry whose name contains `pattern`, per level, and how many times
 * faster than the reference. Returns an exit status. */
int kernel_bench(const char *pattern);

#endif
