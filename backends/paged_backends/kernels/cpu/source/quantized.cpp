// Products with weights of 8 or 4 bits: C functions without state.
#include "quantized_matmul.h"

template void multiply(const Team&, const Product<float>&, const QuantizedWeight&, const QuantizedScratch&);
template void multiply(const Team&, const Product<bf16>&, const QuantizedWeight&, const QuantizedScratch&);
template void multiply_gated(const Team&, const GatedProduct<float>&, const QuantizedWeight&,
                             const QuantizedScratch&);
template void multiply_gated(const Team&, const GatedProduct<bf16>&, const QuantizedWeight&,
                             const QuantizedScratch&);

template <typename T>
static void multiply_batch(const Product<T>& product, const QuantizedWeight& weight, int threads) {
  work_together(threads, [&](const Team& team) {
    TileConfig tiles;
    Workspace memory(QuantizedScratch::bytes(product.rows, product.columns));
    multiply(team, product, weight, QuantizedScratch(memory, product.rows, product.columns));
  });
}

#pragma GCC visibility push(default)
extern "C" {

// Bytes of a packed weight [rows, columns].
int64_t paged_core_packed_codes_size(const CodeFormat* format, int64_t rows, int64_t columns) {
  return (rows + PANEL - 1) / PANEL * format->panel_bytes(columns);
}
void paged_core_pack_codes(const CodeFormat* format, const void* codes, const void* scales, const void* offsets,
                           void* packed, int64_t rows, int64_t columns, int threads) {
  pack_codes({(const uint8_t*)codes, (const uint16_t*)scales, (const uint16_t*)offsets}, *format,
             (uint8_t*)packed, rows, columns, threads);
}

// As `paged_core_linear`.
void paged_core_quantized_linear(int type, const CodeFormat* format, const void* x, int64_t x_stride,
                                 const void* packed, const float* bias, const void* residual, void* out,
                                 int64_t out_stride, int64_t rows, int64_t width, int64_t columns, int threads) {
  const QuantizedWeight weight{(const uint8_t*)packed, *format};
  if (type)
    multiply_batch<bf16>({(const bf16*)x, x_stride, nullptr, bias, (const bf16*)residual, (bf16*)out, out_stride,
                          rows, width, columns},
                         weight, threads);
  else
    multiply_batch<float>({(const float*)x, x_stride, nullptr, bias, (const float*)residual, (float*)out,
                           out_stride, rows, width, columns},
                          weight, threads);
}

}  // extern "C"
#pragma GCC visibility pop
