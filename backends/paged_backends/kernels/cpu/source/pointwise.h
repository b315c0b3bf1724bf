// The operations of a decoder other than products: norms, rotary embedding, activations.
//
// T is float or bf16; arithmetic is in float32, and a result is rounded once. A row is computed by
// one thread, in one order.
#pragma once

#include <algorithm>

#include "team.h"

// -------------------------------------------------------------------- norms

// Divides by the root mean square (RMS), or subtracts the mean and divides by the standard deviation (LAYER).
enum NormKind { RMS = 0, LAYER = 1 };

template <typename T>
struct NormWeights {
  const T* weight;
  const T* bias;  // or null
};

// The kind of norm and its constants.
struct NormRule {
  int kind;
  float epsilon, offset;  // the offset is added to every weight
};

// out = normalised row * (offset + weight) + bias; any of `width` numbers. `out` may be `row`.
template <typename T>
INLINE void normalise(T* out, const T* row, NormWeights<T> weights, int64_t width, NormRule rule) {
  float mean = 0;
  if (rule.kind == LAYER) {
    vf sums = splat(0.0f);
    for (int64_t i = 0; i < width; i += WIDTH) sums = sums + load_upto(row + i, width - i);
    mean = sum_of(sums) / float(width);
  }
  vf squares = splat(0.0f), middle = splat(mean);
  for (int64_t i = 0; i < width; i += WIDTH) {
    vf value = load_upto(row + i, width - i) - middle;
    for (int64_t lane = width - i; lane < WIDTH; lane++) value[lane] = 0;  // past the last number
    squares = squares + value * value;
  }
  vf scale = splat(1.0f / std::sqrt(sum_of(squares) / float(width) + rule.epsilon));
  for (int64_t i = 0; i < width; i += WIDTH) {
    int64_t left = width - i;
    vf value = (load_upto(row + i, left) - middle) * scale;
    value = value * (load_upto(weights.weight + i, left) + splat(rule.offset));
    if (weights.bias) value = value + load_upto(weights.bias + i, left);
    store_upto(out + i, value, left);
  }
}

template <typename T>
struct Norm {
  const T* x;  // [rows, width]
  NormWeights<T> weights;
  T* out;  // [rows, width]
  int64_t x_stride, out_stride, rows, width;
  NormRule rule;
};

template <typename T>
static void normalise_rows(const Team& team, const Norm<T>& n) {
  team.distribute(n.rows, [&](int64_t r) {
    normalise(n.out + r * n.out_stride, n.x + r * n.x_stride, n.weights, n.width, n.rule);
  });
}

// -------------------------------------------------------------------- rotation

// Rotates the pairs (i, i + half) of one head by angles whose cosines and sines are [half].
template <typename T>
INLINE void rotate(T* head, const float* cosines, const float* sines, int64_t half) {
  for (int64_t i = 0; i < half; i += WIDTH) {
    int64_t left = half - i;
    vf x = load_upto(head + i, left), y = load_upto(head + half + i, left);
    vf c = load_upto(cosines + i, left), s = load_upto(sines + i, left);
    store_upto(head + i, x * c - y * s, left);
    store_upto(head + half + i, y * c + x * s, left);
  }
}

template <typename T>
struct Rotation {
  T* query;                     // [rows, heads, dim]
  T* key;                       // [rows, kv_heads, dim]
  const T* query_weight;        // [dim]: each head is normalised first; or null
  const T* key_weight;          // as well
  const float *cosines, *sines; // [positions, half]
  const int64_t* positions;     // [rows]
  int64_t query_stride, key_stride, rows, heads, kv_heads, dim, half;
  NormRule rule;                // of the norms
};

template <typename T>
INLINE void rotate_row(const Rotation<T>& r, int64_t row) {
  int64_t place = r.half ? r.positions[row] * r.half : 0;
  const float *cosines = r.cosines + place, *sines = r.sines + place;
  for (int64_t h = 0; h < r.heads + r.kv_heads; h++) {
    bool is_query = h < r.heads;
    T* head = is_query ? r.query + row * r.query_stride + h * r.dim
                       : r.key + row * r.key_stride + (h - r.heads) * r.dim;
    const T* weight = is_query ? r.query_weight : r.key_weight;
    if (weight) normalise(head, head, {weight, nullptr}, r.dim, r.rule);
    if (r.half) rotate(head, cosines, sines, r.half);
  }
}

template <typename T>
static void rotate_rows(const Team& team, const Rotation<T>& r) {
  team.distribute(r.rows, [&](int64_t row) { rotate_row(r, row); });
}

// -------------------------------------------------------------------- activations

enum Activation { NONE = -1, SILU = 0, GELU_TANH = 1, RELU = 2 };

INLINE vf activate(int kind, vf x) {
  if (kind == RELU) return largest(x, splat(0.0f));
  vf exponent = x;
  if (kind == GELU_TANH)  // x * (1 + tanh(u)) / 2 is x * sigmoid(2 u)
    exponent = (x + x * x * x * splat(0.044715f)) * splat(1.5957691216f);
  return x / (splat(1.0f) + exp_of(splat(0.0f) - exponent));
}

// out = activation(gate) * up, [rows, width], of gate_up [rows, 2 * width].
template <typename T>
struct Gate {
  const T* gate_up;
  T* out;
  int64_t in_stride, out_stride, rows, width;
  int kind;
};

template <typename T>
static void gate(const Team& team, const Gate<T>& g) {
  // columns are distributed too, in whole vectors: a few rows keep all threads busy
  int64_t pieces = (g.width + 255) / 256, begin, end;
  team.share(g.rows * pieces, begin, end);
  for (int64_t item = begin; item < end; item++) {
    int64_t r = item / pieces, first = item % pieces * 256;
    const T* in = g.gate_up + r * g.in_stride;
    T* out = g.out + r * g.out_stride;
    for (int64_t i = first; i < std::min(first + 256, g.width); i += WIDTH) {
      int64_t left = g.width - i;
      vf value = activate(g.kind, load_upto(in + i, left)) * load_upto(in + g.width + i, left);
      store_upto(out + i, value, left);
    }
  }
}
