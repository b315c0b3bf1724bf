// All layers of a decoder in one call: one team of threads, with barriers between steps.
//
// It covers layers with norms before attention and before the feed-forward, which may be gated, and
// optional norms of their outputs. A C function; no state is kept between calls.
#include "attention.h"
#include "matmul.h"
#include "pointwise.h"

extern template void multiply(const Team&, const Product<float>&, const Scratch<float>&);
extern template void multiply_gated(const Team&, const GatedProduct<float>&, const Scratch<float>&);
#if !AMX
extern template void multiply(const Team&, const Product<bf16>&, const Scratch<bf16>&);
extern template void multiply_gated(const Team&, const GatedProduct<bf16>&, const Scratch<bf16>&);
#endif
extern template size_t attention_bytes<float>(const AttentionCall&);
extern template size_t attention_bytes<bf16>(const AttentionCall&);
extern template void attend(const Team&, const Attention<float, float>&, const AttentionCall&, char*);
extern template void attend(const Team&, const Attention<float, CacheCode>&, const AttentionCall&, char*);
extern template void attend(const Team&, const Attention<bf16, bf16>&, const AttentionCall&, char*);
extern template void attend(const Team&, const Attention<bf16, CacheCode>&, const AttentionCall&, char*);

// A packed weight; `structs.py` has the same for this and what follows.
struct Matrix {
  const void* packed;
  const float* bias;  // or null
  int64_t width, columns;
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
  int64_t num_layers, hidden_stride, rows, width, half;
  int32_t activation, gated, norm_kind;
  float epsilon, offset;
  int32_t type, threads;

  NormRule norm_rule() const { return {norm_kind, epsilon, offset}; }
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
  char* memory;

  static NormWeights<T> typed(const NormPair& norm) {
    return {(const T*)norm.weight, (const T*)norm.bias};
  }

  void normalise_hidden(const NormPair& norm) const {
    normalise_rows<T>(team, {(const T*)call.hidden, nullptr, typed(norm), buffers.normed,
                             call.hidden_stride, 0, buffers.normed_stride, call.rows, call.width,
                             call.norm_rule()});
  }

  // Adds x times `matrix`, normed first where there is a norm, to the hidden states.
  void add(const T* x, int64_t stride, const Matrix& matrix, const NormPair& norm) const {
    T* hidden = (T*)call.hidden;
    Product<T> product{x,    stride,    (const T*)matrix.packed, matrix.bias, nullptr, hidden,
                       call.hidden_stride, call.rows, matrix.width, matrix.columns};
    if (!norm.weight) {
      product.residual = hidden;
      multiply(team, product, scratch);
      return;
    }
    product.out = buffers.normed;
    product.out_stride = buffers.normed_stride;
    multiply(team, product, scratch);
    team.wait();
    int64_t begin, end;
    team.share(call.rows, begin, end);
    for (int64_t r = begin; r < end; r++) {
      T *row = buffers.normed + r * buffers.normed_stride, *sum = hidden + r * call.hidden_stride;
      normalise(row, row, typed(norm), call.width, call.norm_rule());
      for (int64_t i = 0; i < call.width; i += WIDTH)
        store_upto(sum + i, load_upto(sum + i, call.width - i) + load_upto(row + i, call.width - i),
                   call.width - i);
    }
  }

  // Turns the fused queries and keys, writes the batch into the cache `a`, and attends.
  template <typename C>
  void attend_batch(const DecoderLayer& l, Attention<T, C>& a) const {
    const AttentionCall& ac = *l.attention;
    int64_t begin, end, rows = call.rows, queries = ac.heads * ac.dim, keys = ac.kv_heads * ac.dim;
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
    team.share(rows, begin, end);
    for (int64_t r = begin; r < end; r++) {
      rotate_row(rotation, r);
      write_token(a, r);
    }
    team.wait();
    attend(team, a, ac, memory);
  }

  void layer(const DecoderLayer& l) const {
    const AttentionCall& ac = *l.attention;
    int64_t rows = call.rows;
    normalise_hidden(l.attention_norm);
    team.wait();
    multiply(team,
             Product<T>{buffers.normed, buffers.normed_stride, (const T*)l.query_key_value.packed,
                        l.query_key_value.bias, nullptr, buffers.fused, buffers.fused_stride, rows,
                        l.query_key_value.width, l.query_key_value.columns},
             scratch);
    team.wait();

    with_view<T>(ac, [&](auto a) { attend_batch(l, a); });
    team.wait();
    add(buffers.attended, buffers.attended_stride, l.output, l.attention_output_norm);
    team.wait();

    normalise_hidden(l.mlp_norm);
    team.wait();
    const T* up = (const T*)l.up.packed;
    if (call.gated)
      multiply_gated(team,
                     GatedProduct<T>{buffers.normed, buffers.normed_stride, up, l.up.bias, buffers.gated,
                                     buffers.gated_stride, rows, l.up.width / 2, l.up.columns,
                                     call.activation},
                     scratch);
    else
      multiply(team,
               Product<T>{buffers.normed, buffers.normed_stride, up, l.up.bias, nullptr, buffers.gated,
                          buffers.gated_stride, rows, l.up.width, l.up.columns, call.activation},
               scratch);
    team.wait();
    add(buffers.gated, buffers.gated_stride, l.down, l.mlp_output_norm);
    team.wait();
  }
};

template <typename T>
static void run(const DecoderCall& call) {
  size_t bytes = 0;
  int64_t columns = 0;
  for (int64_t i = 0; i < call.num_layers; i++) {
    const DecoderLayer& l = call.layers[i];
    bytes = std::max(bytes, attention_bytes<T>(*l.attention));
    for (const Matrix* m : {&l.query_key_value, &l.output, &l.up, &l.down})
      columns = std::max(columns, m->columns);
  }
  work_together(call.threads, [&](const Team& team) {
    TileConfig tiles;
    Workspace memory(bytes + Scratch<T>::bytes(call.rows, columns));
    Scratch<T> scratch(memory, call.rows, columns);
    Step<T> step{call, team, buffers_of<T>(call), scratch, memory.take<char>(int64_t(bytes))};
    for (int64_t i = 0; i < call.num_layers; i++) step.layer(call.layers[i]);
  });
}

#pragma GCC visibility push(default)
extern "C" {

// Bytes of what Python fills in or makes room for, in the order of `structs.py`.
extern const int64_t paged_core_struct_bytes[];
const int64_t paged_core_struct_bytes[] = {sizeof(AttentionCall), sizeof(DecoderCall), sizeof(DecoderLayer),
                                           sizeof(Item), sizeof(Join), sizeof(Share), sizeof(Member)};

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
