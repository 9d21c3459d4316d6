/* What the GPU tests share: device memory, and rows as f16 or bf16. */
#ifndef QUIRE_TESTS_CUDA_KIT_H
#define QUIRE_TESTS_CUDA_KIT_H

#include "kit.h"

#include <cuda_runtime_api.h>

#include "quire_cuda.h"

#define assert_cuda(call)                                                                          \
    do {                                                                                           \
        const cudaError_t error_ = (call);                                                         \
        if (error_ != cudaSuccess)                                                                 \
            fail_msg("%s: %s", #call, cudaGetErrorString(error_));                                 \
    } while (0)
#define assert_gpu(call)                                                                           \
    do {                                                                                           \
        const quire_status status_ = (call);                                                       \
        if (status_ != QUIRE_OK)                                                                   \
            fail_msg("%s: %s: %s", #call, quire_status_name(status_), quire_cuda_last_error());    \
    } while (0)

/* Says so if there is no GPU that runs the kernels: the program then returns LEFT_OUT. */
bool gpu_is_missing(void);

void *gpu_new(size_t bytes, int fill);                   /* every byte is `fill` */
void *gpu_copy(const void *from, size_t bytes);          /* a copy of host memory */
void gpu_read(void *to, const void *from, size_t bytes); /* after all work so far */

float rounded(quire_type type, float x);                       /* to f16 or bf16, and back */
uint16_t *narrowed(quire_type type, const float *x, size_t n); /* malloc'ed */
void round_rows(quire_type type, float *x, size_t n);

#endif
