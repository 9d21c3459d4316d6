#include "cuda_kit.h"

#include <stdio.h>

#include "base/fp16.h"

bool gpu_is_missing(void) {
    if (quire_cuda_available() == QUIRE_OK)
        return false;
    printf("left out: %s\n", quire_cuda_last_error());
    return true;
}

void *gpu_new(size_t bytes, int fill) {
    void *memory;
    assert_cuda(cudaMalloc(&memory, bytes ? bytes : 1));
    assert_cuda(cudaMemset(memory, fill, bytes ? bytes : 1));
    return memory;
}

void *gpu_copy(const void *from, size_t bytes) {
    void *memory = gpu_new(bytes, 0);
    assert_cuda(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice));
    return memory;
}

void gpu_read(void *to, const void *from, size_t bytes) {
    assert_cuda(cudaDeviceSynchronize());
    assert_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

float rounded(quire_type type, float x) {
    return type == QUIRE_F16 ? quire__f16_to_f32(quire__f32_to_f16(x))
                             : quire__bf16_to_f32(quire__f32_to_bf16(x));
}

uint16_t *narrowed(quire_type type, const float *x, size_t n) {
    uint16_t *y = malloc((n ? n : 1) * sizeof *y);
    for (size_t i = 0; i < n; i++)
        y[i] = type == QUIRE_F16 ? quire__f32_to_f16(x[i]) : quire__f32_to_bf16(x[i]);
    return y;
}

void round_rows(quire_type type, float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        x[i] = rounded(type, x[i]);
}
