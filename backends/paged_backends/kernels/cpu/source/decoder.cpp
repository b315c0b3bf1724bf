// All layers of a decoder in one call: one team of threads, with barriers between steps.
//
// It covers layers with norms before attention and before the feed-forward, which may be gated, and
// optional norms of their outputs. A C function; no state is kept between calls.
#include "attention.h"
#include "matmul.h"
#include "pointwise.h"
#include "quantized_matmul.h"

extern template void multiply(const Team&, const Product<float>&, const Scratch<float>&);
extern template void multiply_gated(const Team&, const GatedProduct<float>&, const Scratch<float>&);
#if !AMX
extern template void multiply(const Team&, const Product<bf16>&, const Scratch<bf16>&);
extern template void multiply_gated(const Team&, const GatedProduct<bf16>&, const Scratch<bf16>&);
#endif
extern template void multiply(const Team&, const Product<float>&, const QuantizedWeight&,
                              const QuantizedScratch&);
extern template void multiply(const Team&, const Product<bf16>&, const QuantizedWeight&, const QuantizedScratch&);
extern template void multiply_gated(const Team&, const GatedProduct<float>&, const QuantizedWeight&,
                                    const QuantizedScratch&);
extern template void multiply_gated(const Team&, const GatedProduct<bf16>&, const QuantizedWeight&,
                                    const QuantizedScratch&);
extern template size_t attention_bytes<float>(const AttentionCall&);
extern template size_t attention_bytes<bf16>(const AttentionCall&);
extern template void attend(const Team&, const Attention<float, float>&, const AttentionCall&, char*);
extern template void attend(const Team&, const Attention<float, CacheCode>&, const AttentionCall&, char*);
extern template void attend(const Team&, const Attention<bf16, bf16>&, const AttentionCall&, char*);
extern template void attend(const Team&, const Attention<bf16, CacheCode>&, const AttentionCall&, char*);

// A packed weight; `bindings.py` has the same for this and what follows.
struct Matrix {
  const void* packed;
  const float* bias;  // or null
  int64_t width, columns;
  CodeFormat format;  // of 0 bits: it holds numbers as activations are

  bool is_quantized() const { return format.bits != 0; }
  QuantizedWeight quantized() const { return {(const uint8_t*)packed, format}; }
};

struct NormPair {
  const void *weight, *bias;
};

struct DecoderLayer {
  NormPair attention_norm, attention_output_norm;  // those of outputs may be null
  NormPair mlp_norm, mlp_output_norm;
  const void *query_norm, *key_norm;  // null, or of each head
  Matrix query_key_value, output, up, down;  // `up`: gates first, if gated
  int64_t rope;                 // which tables of cosines and sines; -1: none
  const AttentionCall* attention;
};

struct DecoderCall {
  const DecoderLayer* layers;
  void* hidden;  // [rows, width]: input of the first layer, overwritten with the output of the last
  const int64_t* positions;      // [rows]
  const float* const* cosines;   // of each rope, [positions, half]
  const float* const* sines;
  void* memory;                  // of `paged_core_decoder_numbers` numbers, aligned to 64 bytes
  // Replaces the first `numbers` of `memory` by their sums over the ranks that share the layers; null: one rank.
  void (*all_reduce)(int64_t numbers);
  int64_t num_layers, hidden_stride, rows, width, half;
  int32_t activation, gated, norm_kind;
  float epsilon, offset;
  int32_t type, threads;

  NormRule norm_rule() const { return {norm_kind, epsilon, offset}; }
};

// Rows of numbers, `stride` after each other.
template <typename T>
struct Rows {
  T* first;
  int64_t stride;
};

// Memory of the intermediate results.
template <typename T>
struct Buffers {
  T *normed, *fused, *attended, *gated;
  int64_t normed_stride, fused_stride, attended_stride, gated_stride, numbers;

  Buffers(T* memory, int64_t rows, int64_t width, int64_t fused_width, int64_t attended_width,
          int64_t gated_width)
      : normed_stride(padded<T>(width)),
        fused_stride(padded<T>(fused_width)),
        attended_stride(padded<T>(attended_width)),
        gated_stride(padded<T>(gated_width)) {
    normed = memory;
    fused = normed + rows * normed_stride;
    attended = fused + rows * fused_stride;
    gated = attended + rows * attended_stride;
    numbers = gated + rows * gated_stride - memory;
  }
};

template <typename T>
static Buffers<T> buffers_of(const DecoderCall& call) {
  const DecoderLayer& layer = call.layers[0];
  return Buffers<T>((T*)call.memory, call.rows, call.width, layer.query_key_value.width,
                    layer.output.columns, layer.down.columns);
}

template <typename T>
struct Step {
  const DecoderCall& call;
  const Team& team;
  Buffers<T> buffers;
  Scratch<T> scratch;
  QuantizedScratch quantized_scratch;
  char* memory;

  static NormWeights<T> typed(const NormPair& norm) {
    return {(const T*)norm.weight, (const T*)norm.bias};
  }

  void normalise_hidden(const NormPair& norm) const {
    normalise_rows<T>(team, {(const T*)call.hidden, typed(norm), buffers.normed, call.hidden_stride,
                             buffers.normed_stride, call.rows, call.width, call.norm_rule()});
  }

  // out = activation(x times `matrix`) + residual.
  void multiply_by(const Matrix& matrix, Rows<T> x, Rows<T> out, const T* residual = nullptr,
                   int activation = NONE) const {
    const Product<T> product{x.first,    x.stride,  (const T*)matrix.packed, matrix.bias,    residual,  out.first,
                             out.stride, call.rows, matrix.width,            matrix.columns, activation};
    if (matrix.is_quantized())
      multiply(team, product, matrix.quantized(), quantized_scratch);
    else
      multiply(team, product, scratch);
  }

  // out = activation(x times the gates of `matrix`) * (x times the rest of it).
  void gate_by(const Matrix& matrix, Rows<T> x, Rows<T> out) const {
    const GatedProduct<T> product{x.first,    x.stride,  (const T*)matrix.packed, matrix.bias,    out.first,
                                  out.stride, call.rows, matrix.width / 2,        matrix.columns, call.activation};
    if (matrix.is_quantized())
      multiply_gated(team, product, matrix.quantized(), quantized_scratch);
    else
      multiply_gated(team, product, scratch);
  }

  // Adds x times `matrix`, normed first where there is a norm, to the hidden states. Of several ranks, each has
  // some of the columns; the bias is added to their sum.
  void add(Rows<T> x, const Matrix& matrix, const NormPair& norm) const {
    T* hidden = (T*)call.hidden;
    if (!norm.weight && !call.all_reduce) {
      multiply_by(matrix, x, {hidden, call.hidden_stride}, hidden);
      return;
    }
    Matrix own = matrix;
    if (call.all_reduce) own.bias = nullptr;
    multiply_by(own, x, {buffers.normed, buffers.normed_stride});
    team.wait();
    if (call.all_reduce) {
      if (team.rank == 0) call.all_reduce(call.rows * buffers.normed_stride);
      team.wait();
    }
    const float* bias = call.all_reduce ? matrix.bias : nullptr;
    team.distribute(call.rows, [&](int64_t r) {
      T *row = buffers.normed + r * buffers.normed_stride, *sum = hidden + r * call.hidden_stride;
      if (norm.weight) {
        if (bias) add_row(row, bias, row);
        normalise(row, row, typed(norm), call.width, call.norm_rule());
        add_row(sum, row, sum);
      } else if (bias) {
        for (int64_t i = 0; i < call.width; i += WIDTH) {  // rounded once
          const int64_t left = call.width - i;
          store_upto(sum + i, load_upto(sum + i, left) + (load_upto(row + i, left) + load_upto(bias + i, left)), left);
        }
      } else {
        add_row(sum, row, sum);
      }
    });
  }

  // out = one + other.
  template <typename U>
  void add_row(const T* one, const U* other, T* out) const {
    for (int64_t i = 0; i < call.width; i += WIDTH) {
      const int64_t left = call.width - i;
      store_upto(out + i, load_upto(one + i, left) + load_upto(other + i, left), left);
    }
  }

  // Turns the fused queries and keys, writes the batch into the cache `a`, and attends.
  template <typename C>
  void attend_batch(const DecoderLayer& l, Attention<T, C>& a) const {
    const AttentionCall& ac = *l.attention;
    const int64_t rows = call.rows, queries = ac.heads * ac.dim, keys = ac.kv_heads * ac.dim;
    a.query = buffers.fused;
    a.key = buffers.fused + queries;
    a.value = buffers.fused + queries + keys;
    a.out = buffers.attended;
    a.query_token = a.key_token = a.value_token = buffers.fused_stride;
    a.query_head = a.key_head = a.value_head = ac.dim;
    a.out_token = buffers.attended_stride;
    Rotation<T> rotation{buffers.fused, buffers.fused + queries, (const T*)l.query_norm,
                         (const T*)l.key_norm, l.rope < 0 ? nullptr : call.cosines[l.rope],
                         l.rope < 0 ? nullptr : call.sines[l.rope], call.positions,
                         buffers.fused_stride, buffers.fused_stride, rows, ac.heads, ac.kv_heads, ac.dim,
                         l.rope < 0 ? 0 : call.half, {RMS, call.epsilon, call.offset}};
    team.distribute(rows, [&](int64_t r) {
      rotate_row(rotation, r);
      write_token(a, r);
    });
    team.wait();
    attend(team, a, ac, memory);
  }

  void layer(const DecoderLayer& l) const {
    const Rows<T> normed{buffers.normed, buffers.normed_stride}, gated{buffers.gated, buffers.gated_stride};
    normalise_hidden(l.attention_norm);
    team.wait();
    multiply_by(l.query_key_value, normed, {buffers.fused, buffers.fused_stride});
    team.wait();
    with_view<T>(*l.attention, [&](auto a) { attend_batch(l, a); });
    team.wait();
    add({buffers.attended, buffers.attended_stride}, l.output, l.attention_output_norm);
    team.wait();

    normalise_hidden(l.mlp_norm);
    team.wait();
    if (call.gated)
      gate_by(l.up, normed, gated);
    else
      multiply_by(l.up, normed, gated, nullptr, call.activation);
    team.wait();
    add(gated, l.down, l.mlp_output_norm);
    team.wait();
  }
};

template <typename T>
static void run(const DecoderCall& call) {
  size_t bytes = 0;
  int64_t columns = 0, quantized_columns = 0;  // the most
  for (int64_t i = 0; i < call.num_layers; i++) {
    const DecoderLayer& l = call.layers[i];
    bytes = std::max(bytes, attention_bytes<T>(*l.attention));
    for (const Matrix* m : {&l.query_key_value, &l.output, &l.up, &l.down}) {
      int64_t& most = m->is_quantized() ? quantized_columns : columns;
      most = std::max(most, m->columns);
    }
  }
  work_together(call.threads, [&](const Team& team) {
    TileConfig tiles;
    Workspace memory(bytes + Scratch<T>::bytes(call.rows, columns) +
                     QuantizedScratch::bytes(call.rows, quantized_columns));
    Scratch<T> scratch(memory, call.rows, columns);
    QuantizedScratch quantized_scratch(memory, call.rows, quantized_columns);
    Step<T> step{call, team, buffers_of<T>(call), scratch, quantized_scratch, memory.take<char>(int64_t(bytes))};
    for (int64_t i = 0; i < call.num_layers; i++) step.layer(call.layers[i]);
  });
}

#pragma GCC visibility push(default)
extern "C" {

// Bytes of what Python fills in or makes room for, in the order of `bindings.py`.
extern const int64_t paged_core_struct_bytes[];
const int64_t paged_core_struct_bytes[] = {sizeof(AttentionCall), sizeof(DecoderCall), sizeof(DecoderLayer),
                                           sizeof(CodeFormat), sizeof(Item), sizeof(Join), sizeof(Share), sizeof(Member)};

// Numbers of `call.memory`, whose rows and layers are set already.
int64_t paged_core_decoder_numbers(const DecoderCall* call) {
  return call->type ? buffers_of<bf16>(*call).numbers : buffers_of<float>(*call).numbers;
}

void paged_core_decoder(const DecoderCall* call) {
  if (call->type)
    run<bf16>(*call);
  else
    run<float>(*call);
}

}  // extern "C"
#pragma GCC visibility pop
