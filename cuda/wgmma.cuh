/* Hopper's products of a warpgroup: d (64 x N, fp32, in registers) += a (64 x 16, fp16) * b (16 x
 * N, fp16). They run asynchronously: fence, products, commit, wait. Registers of d and a must not
 * be touched in between; ptxas serializes all products (warning C75xx) where it cannot prove that.
 * They exist for sm_90a alone. */
#ifndef QUIRE_CUDA_WGMMA_CUH
#define QUIRE_CUDA_WGMMA_CUH

#include <cstdint>

namespace quire_cuda {

/* a: registers (a0..a3), or shared memory whose rows are tokens (by_rows) or channels, 64 to a row
 * (by_columns). b: shared memory, one row for each column of the product. `first_` forms overwrite
 * d. */
template <int N> struct Wgmma;

#define QUIRE_LIST_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define QUIRE_LIST_16 QUIRE_LIST_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define QUIRE_LIST_24 QUIRE_LIST_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define QUIRE_LIST_40                                                                              \
    QUIRE_LIST_24 ",%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39"
#define QUIRE_LIST_44 QUIRE_LIST_40 ",%40,%41,%42,%43"
#define QUIRE_LIST_52 QUIRE_LIST_44 ",%44,%45,%46,%47,%48,%49,%50,%51"

#define QUIRE_D_4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define QUIRE_D_8(c) QUIRE_D_4(c, 0), QUIRE_D_4(c, 4)
#define QUIRE_D_16(c) QUIRE_D_8(c), QUIRE_D_4(c, 8), QUIRE_D_4(c, 12)
#define QUIRE_D_24(c) QUIRE_D_16(c), QUIRE_D_4(c, 16), QUIRE_D_4(c, 20)
#define QUIRE_D_40(c)                                                                              \
    QUIRE_D_24(c), QUIRE_D_4(c, 24), QUIRE_D_4(c, 28), QUIRE_D_4(c, 32), QUIRE_D_4(c, 36)
#define QUIRE_D_44(c) QUIRE_D_40(c), QUIRE_D_4(c, 40)
#define QUIRE_D_52(c) QUIRE_D_44(c), QUIRE_D_4(c, 44), QUIRE_D_4(c, 48)

#define QUIRE_PRODUCT(n, list, accumulate, a, b, transpose)                                        \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate ", 0;\n"                                        \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" list "}, " a ", " b                 \
    ", p, 1, 1, " transpose ";\n}"

/* p0 .. p4: the places of operands after the n/2 registers of d. */
#define QUIRE_WGMMA(n, half, p0, p1, p2, p3, p4)                                                   \
    template <> struct Wgmma<n> {                                                                  \
        static __device__ __forceinline__ void product(float (&d)[half], const uint32_t (&a)[4],   \
                                                       uint64_t b) {                               \
            asm volatile(                                                                          \
                QUIRE_PRODUCT(n, QUIRE_LIST_##half, "1", "{" p0 "," p1 "," p2 "," p3 "}", p4, "0") \
                : QUIRE_D_##half("+f")                                                             \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                             \
        }                                                                                          \
        static __device__ __forceinline__ void first_product(float (&d)[half],                     \
                                                             const uint32_t (&a)[4], uint64_t b) { \
            asm volatile(                                                                          \
                QUIRE_PRODUCT(n, QUIRE_LIST_##half, "0", "{" p0 "," p1 "," p2 "," p3 "}", p4, "0") \
                : QUIRE_D_##half("=f")                                                             \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                             \
        }                                                                                          \
        static __device__ __forceinline__ void by_rows(float (&d)[half], uint64_t a, uint64_t b) { \
            asm volatile(QUIRE_PRODUCT(n, QUIRE_LIST_##half, "1", p0, p1, "0, 0")                  \
                         : QUIRE_D_##half("+f")                                                    \
                         : "l"(a), "l"(b));                                                        \
        }                                                                                          \
        static __device__ __forceinline__ void first_by_rows(float (&d)[half], uint64_t a,         \
                                                             uint64_t b) {                         \
            asm volatile(QUIRE_PRODUCT(n, QUIRE_LIST_##half, "0", p0, p1, "0, 0")                  \
                         : QUIRE_D_##half("=f")                                                    \
                         : "l"(a), "l"(b));                                                        \
        }                                                                                          \
        static __device__ __forceinline__ void by_columns(float (&d)[half], uint64_t a,            \
                                                          uint64_t b) {                            \
            asm volatile(QUIRE_PRODUCT(n, QUIRE_LIST_##half, "1", p0, p1, "1, 0")                  \
                         : QUIRE_D_##half("+f")                                                    \
                         : "l"(a), "l"(b));                                                        \
        }                                                                                          \
    };

QUIRE_WGMMA(16, 8, "%8", "%9", "%10", "%11", "%12")
QUIRE_WGMMA(32, 16, "%16", "%17", "%18", "%19", "%20")
QUIRE_WGMMA(48, 24, "%24", "%25", "%26", "%27", "%28")
QUIRE_WGMMA(80, 40, "%40", "%41", "%42", "%43", "%44")
QUIRE_WGMMA(88, 44, "%44", "%45", "%46", "%47", "%48")
QUIRE_WGMMA(104, 52, "%52", "%53", "%54", "%55", "%56")

/* Operands in shared memory have the 128-byte swizzle: 16 bytes at place x of row y lie at
 * 128 * y + 16 * (x ^ y % 8). Eight rows are 1024 bytes, and an operand starts at a multiple of
 * that, plus steps of 32 bytes along a row. An operand further on, by `bytes`, costs one addition.
 */
__device__ __forceinline__ uint32_t operand_at(uint32_t address) {
    return (address & 0x3ffff) >> 4 | 64 << 16;
}
__device__ __forceinline__ uint64_t operand(uint32_t first, int bytes) {
    return (uint64_t)0x40000040 << 32 | (first + (uint32_t)(bytes / 16));
}

__device__ __forceinline__ void products_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/* The compiler moves no use of x across this. */
template <int K> __device__ __forceinline__ void pin(float (&x)[K]) {
#pragma unroll
    for (int i = 0; i < K; i++)
        asm volatile("" : "+f"(x[i])::"memory");
}

/* What this thread wrote to shared memory is seen by products and copies. Before a barrier, by each
 * that wrote. */
__device__ __forceinline__ void publish_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Four 8 x 8 blocks of 16-bit elements; lane 8i+j gives the address of row j of block i. */
__device__ __forceinline__ void store_blocks(uint32_t address, const uint32_t (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

/* The same, transposed. */
__device__ __forceinline__ void store_transposed(uint32_t address, const uint32_t (&x)[4]) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
        "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
        : "memory");
}
__device__ __forceinline__ void store_transposed_2(uint32_t address, uint32_t a, uint32_t b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(address),
                 "r"(a), "r"(b)
                 : "memory");
}

} // namespace quire_cuda

#endif
