/* Instructions that CUDA C++ has no name for. */
#ifndef QUIRE_CUDA_PTX_CUH
#define QUIRE_CUDA_PTX_CUH

#include <cstdint>

#include <cuda_fp16.h>

namespace quire_cuda {

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* c (16 x 8, fp32) += a (16 x 16, fp16) * b (16 x 8, fp16). Subnormal fp16 operands count in full.
 */
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t transpose_8x8(uint32_t x) {
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1 / x, to about the last bit. */
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ uint32_t bits(half2 x) { return *(uint32_t *)&x; }
__device__ __forceinline__ half2 halves(uint32_t x) { return *(half2 *)&x; }

/* Adds n; what this thread, and those it has met at a barrier, wrote before is seen by whoever adds
 * later. */
__device__ __forceinline__ unsigned draw_ticket(unsigned *counter, unsigned n) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(n)
                 : "memory");
    return before;
}

/* 128 bytes into L2. */
__device__ __forceinline__ void prefetch(const void *from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

/* ---- a barrier in shared memory that counts the bytes of a copy */

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals = 1) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Barriers that this thread made are seen by the copy engine. */
__device__ __forceinline__ void barriers_publish() {
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::
                     : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\nL_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], "
                 "%1;\n@!p bra L_%=;\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Pages are read once: they leave L2 before q, tables and code do. */
__device__ __forceinline__ uint64_t evict_first() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* One arrival, and so many bytes to come. */
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Bytes that `barrier` expects. */
__device__ __forceinline__ void copy_bytes(uint32_t to, const void *from, uint32_t bytes,
                                           uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

__device__ __forceinline__ void copy_bytes(uint32_t to, const void *from, uint32_t bytes,
                                           uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void copy_to_shared(uint32_t to, const void *from, uint32_t bytes,
                                               uint32_t barrier) {
    barrier_expect(barrier, bytes);
    copy_bytes(to, from, bytes, barrier);
}

} // namespace quire_cuda

#endif
