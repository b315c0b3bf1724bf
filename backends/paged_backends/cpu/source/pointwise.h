// What a decoder does between products: norms, rotation, gates, and the largest logit.
//
// T is float or bf16; arithmetic is in float32, and a result is rounded once. A row is computed by
// one thread, in one order.
#pragma once

#include <algorithm>

#include "team.h"

// -------------------------------------------------------------------- norms

// out = row / rms(row) * (offset + weight); any of `width` numbers. `out` may be `row`.
template <typename T>
INLINE void normalise(T* out, const T* row, const T* weight, int64_t width, float epsilon,
                      float offset) {
  vf squares = splat(0.0f);
  for (int64_t i = 0; i < width; i += WIDTH) {
    vf value = load_upto(row + i, width - i);
    squares = squares + value * value;
  }
  vf scale = splat(1.0f / std::sqrt(sum_of(squares) / float(width) + epsilon));
  for (int64_t i = 0; i < width; i += WIDTH) {
    vf value = load_upto(row + i, width - i) * scale;
    store_upto(out + i, value * (load_upto(weight + i, width - i) + splat(offset)), width - i);
  }
}

template <typename T>
struct Norm {
  const T* x;   // [rows, width]
  T* residual;  // [rows, width]: becomes residual + x, which is what is normalised; or null
  const T* weight;
  T* out;  // [rows, width]
  int64_t x_stride, residual_stride, out_stride, rows, width;
  float epsilon, offset;
};

template <typename T>
static void rms_norm(const Team& team, const Norm<T>& n) {
  int64_t begin, end;
  team.share(n.rows, begin, end);
  for (int64_t r = begin; r < end; r++) {
    const T* row = n.x + r * n.x_stride;
    if (n.residual) {
      T* sum = n.residual + r * n.residual_stride;
      for (int64_t i = 0; i < n.width; i += WIDTH)
        store_upto(sum + i, load_upto(sum + i, n.width - i) + load_upto(row + i, n.width - i),
                   n.width - i);
      row = sum;
    }
    normalise(n.out + r * n.out_stride, row, n.weight, n.width, n.epsilon, n.offset);
  }
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
  float epsilon, offset;        // of the norms
};

template <typename T>
INLINE void rotate_row(const Rotation<T>& r, int64_t row) {
  const float* cosines = r.cosines + r.positions[row] * r.half;
  const float* sines = r.sines + r.positions[row] * r.half;
  for (int64_t h = 0; h < r.heads + r.kv_heads; h++) {
    bool is_query = h < r.heads;
    T* head = is_query ? r.query + row * r.query_stride + h * r.dim
                       : r.key + row * r.key_stride + (h - r.heads) * r.dim;
    const T* weight = is_query ? r.query_weight : r.key_weight;
    if (weight) normalise(head, head, weight, r.dim, r.epsilon, r.offset);
    if (r.half) rotate(head, cosines, sines, r.half);
  }
}

template <typename T>
static void rotate_rows(const Team& team, const Rotation<T>& r) {
  int64_t begin, end;
  team.share(r.rows, begin, end);
  for (int64_t row = begin; row < end; row++) rotate_row(r, row);
}

// -------------------------------------------------------------------- gates

enum Activation { SILU = 0, GELU_TANH = 1 };

INLINE vf activate(int kind, vf x) {
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
  // columns are shared out too, in whole vectors: a few rows are work for all
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

// -------------------------------------------------------------------- the largest

struct Best {
  float value;
  int64_t place;
};

// The first place of the largest of begin .. end; what is no number is larger than any.
template <typename T>
INLINE Best best_of(const T* row, int64_t begin, int64_t end) {
  Best best{-INFINITY, begin};
  vf top = splat(-INFINITY);
  vi odd = vi{};
  for (int64_t i = begin; i < end; i += WIDTH) {
    vf value = load_upto(row + i, end - i);
    if (end - i < WIDTH)
      for (int64_t lane = end - i; lane < WIDTH; lane++) value[lane] = -INFINITY;
    odd |= value != value;
    top = choose(value > top, value, top);
  }
  bool has_odd = false;
  for (int lane = 0; lane < WIDTH; lane++) has_odd |= odd[lane] != 0;
  best.value = has_odd ? NAN : largest_of(top);
  for (int64_t i = begin; i < end; i++) {
    float value = to_float(row[i]);
    if (has_odd ? value != value : value == best.value) {
      best.place = i;
      break;
    }
  }
  return best;
}

// places [rows]: of the largest of each row of logits [rows, width]; `found` is [rows * team.size].
template <typename T>
static void argmax(const Team& team, const T* logits, int64_t stride, int64_t rows, int64_t width,
                   int64_t* places, Best* found) {
  int64_t begin, end;
  team.share(width, begin, end);
  for (int64_t r = 0; r < rows; r++)
    found[r * team.size + team.rank] =
        begin < end ? best_of(logits + r * stride, begin, end) : Best{-INFINITY, width};
  team.wait();
  team.share(rows, begin, end);
  for (int64_t r = begin; r < end; r++) {
    Best best = found[r * team.size];
    for (int t = 1; t < team.size; t++) {
      Best other = found[r * team.size + t];
      if (best.value != best.value) break;
      if (other.place < width && (best.place >= width || other.value > best.value ||
                                  other.value != other.value))
        best = other;
    }
    places[r] = best.place;
  }
}
