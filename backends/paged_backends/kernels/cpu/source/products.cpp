// Products with packed weights, norms, rotary embedding and gates: C functions without state.
//
// `type` is 0 for float32 and 1 for bfloat16; strides count numbers; `threads` work on a call.
#include "matmul.h"
#include "pointwise.h"
#if AMX
#include "amx_matmul.h"
#endif

template <typename T>
static void multiply_batch(const Product<T>& product, int threads) {
  work_together(threads, [&](const Team& team) {
    TileConfig tiles;
    Workspace memory(Scratch<T>::bytes(product.rows, product.columns));
    multiply(team, product, Scratch<T>(memory, product.rows, product.columns));
  });
}

template void multiply(const Team&, const Product<float>&, const Scratch<float>&);
template void multiply_gated(const Team&, const GatedProduct<float>&, const Scratch<float>&);
#if !AMX
template void multiply(const Team&, const Product<bf16>&, const Scratch<bf16>&);
template void multiply_gated(const Team&, const GatedProduct<bf16>&, const Scratch<bf16>&);
#endif

#pragma GCC visibility push(default)
extern "C" {

// Numbers of a packed weight [rows, columns].
int64_t paged_core_packed_size(int type, int64_t rows, int64_t columns) {
  int64_t panels = (rows + PANEL - 1) / PANEL;
  return panels * (type ? panel_size<bf16>(columns) : panel_size<float>(columns));
}
void paged_core_pack(int type, const void* weight, void* packed, int64_t rows, int64_t columns,
                     int threads) {
  if (type)
    pack_weight((const bf16*)weight, (bf16*)packed, rows, columns, threads);
  else
    pack_weight((const float*)weight, (float*)packed, rows, columns, threads);
}

void paged_core_linear(int type, const void* x, int64_t x_stride, const void* packed,
                       const float* bias, const void* residual, void* out, int64_t out_stride,
                       int64_t rows, int64_t width, int64_t columns, int threads) {
  if (type)
    multiply_batch<bf16>({(const bf16*)x, x_stride, (const bf16*)packed, bias,
                          (const bf16*)residual, (bf16*)out, out_stride, rows, width, columns},
                         threads);
  else
    multiply_batch<float>({(const float*)x, x_stride, (const float*)packed, bias,
                           (const float*)residual, (float*)out, out_stride, rows, width, columns},
                          threads);
}

// `kind`: 0, by the root mean square; 1, by the standard deviation, about the mean.
void paged_core_norm(int type, int kind, const void* x, int64_t x_stride, const void* weight,
                     const void* bias, void* out, int64_t out_stride, int64_t rows, int64_t width,
                     float epsilon, float offset, int threads) {
  work_together(threads_for(rows * width, threads), [&](const Team& team) {
    NormRule rule{kind, epsilon, offset};
    if (type)
      normalise_rows<bf16>(team, {(const bf16*)x, {(const bf16*)weight, (const bf16*)bias}, (bf16*)out,
                                  x_stride, out_stride, rows, width, rule});
    else
      normalise_rows<float>(team, {(const float*)x, {(const float*)weight, (const float*)bias}, (float*)out,
                                   x_stride, out_stride, rows, width, rule});
  });
}

void paged_core_rope(int type, void* query, int64_t query_stride, void* key, int64_t key_stride,
                     const void* query_weight, const void* key_weight, const float* cosines,
                     const float* sines, const int64_t* positions, int64_t rows, int64_t heads,
                     int64_t kv_heads, int64_t dim, int64_t half, float epsilon, float offset,
                     int threads) {
  work_together(threads_for(rows * (heads + kv_heads) * dim, threads), [&](const Team& team) {
    if (type)
      rotate_rows<bf16>(team, {(bf16*)query, (bf16*)key, (const bf16*)query_weight,
                               (const bf16*)key_weight, cosines, sines, positions, query_stride,
                               key_stride, rows, heads, kv_heads, dim, half, {RMS, epsilon, offset}});
    else
      rotate_rows<float>(team, {(float*)query, (float*)key, (const float*)query_weight,
                                (const float*)key_weight, cosines, sines, positions, query_stride,
                                key_stride, rows, heads, kv_heads, dim, half,
                                {RMS, epsilon, offset}});
  });
}

void paged_core_gate(int type, int kind, const void* gate_up, int64_t in_stride, void* out,
                     int64_t out_stride, int64_t rows, int64_t width, int threads) {
  work_together(threads_for(rows * width, threads), [&](const Team& team) {
    if (type)
      gate<bf16>(team, {(const bf16*)gate_up, (bf16*)out, in_stride, out_stride, rows, width, kind});
    else
      gate<float>(team,
                  {(const float*)gate_up, (float*)out, in_stride, out_stride, rows, width, kind});
  });
}

}  // extern "C"
#pragma GCC visibility pop
