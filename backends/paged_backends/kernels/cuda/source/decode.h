// Attention of single tokens over the paged cache, on tensor cores. The keys of a row are split
// among blocks of threads (Flash-Decoding; Dao et al., 2023), and read once for the query heads that
// share them, which are the rows of a matrix; where there are fewer than 16, the others are zeros.
//
// Each warp takes 16 keys in a step, with a softmax of its own, and brings them itself, two steps
// ahead, to shared memory that no other warp uses: no barrier of the block is needed. The warps are
// put together at the end: through shared memory, then by combine.h.
//
// Numbers of a cache of 8-bit floats are widened in registers. They lie twice as dense, so a lane
// gets the numbers of other dimensions than a fragment has there: queries are loaded in the same
// order, and the result is stored in it.
#pragma once

#include "joint.h"
#include "tensor_core.h"

/// What weights and values are multiplied in. Values of 8-bit floats have scales of any magnitude,
/// which weights are multiplied by: too large a range for half.
template <class T, class Stored>
struct WeightOf {
  using Type = T;
};
template <class T>
struct WeightOf<T, Float8> {
  using Type = __nv_bfloat16;
};

template <class T, class Stored, int kDim>
class Decode {
 public:
  static constexpr int kWarps = kDim <= 128 ? 4 : 2, kThreads = kWarps * 32;
  static constexpr int kBlocks = 3;  // on a multiprocessor, at least
  static constexpr int kRows = 16;   // query heads

 private:
  using Weight = typename WeightOf<T, Stored>::Type;
  static constexpr bool kIsWidened = kIsFloat8<Stored>;
  static constexpr int kKeys = 16, kStages = 2;
  static constexpr int kSteps = kDim / 16, kColumns = kDim / 8;  // of products; of results
  static constexpr int kUnit = 16 / sizeof(Stored);              // numbers in 16 bytes
  static constexpr int kPieces = kDim / kPiece;
  static constexpr int kLanes = kPieces % 8 ? 4 : 8;  // that bring a row
  static constexpr int kTurns = kKeys * kLanes / 32;  // rows that each of them brings

  /// An odd number of 16 bytes separates rows: eight of them lie in different banks.
  struct Rows {
    alignas(16) Stored at[kKeys][kDim + kUnit];
  };
  struct Stage {
    Rows keys, values;
    unsigned scales[kIsWidened ? 32 : 1];  // those of the keys, then of the values
  };

 public:
  union Shared {
    Stage stages[kWarps][kStages];
    Joint<kWarps, kRows, kDim> joint;
  };

  static __device__ __forceinline__ void run(const Call& call) {
    Row row = Row::at(call, blockIdx.x);
    if (!row.is_here || int(blockIdx.z) >= row.num_splits(call)) return;
    SIMT_SHARED(Shared, shared);
    Decode decode(call, row, shared);
    decode.load_queries();
    decode.attend();
    __syncthreads();  // the stages are used no more
    decode.leave_joint();
    __syncthreads();  // the joint is complete
    shared.joint.template store<T, kThreads>(call, row, decode.share);
  }

 private:
  const Call& call;
  const Row& row;
  Shared& shared;
  Scorer scorer;
  Share share;
  int warp, lane, g, t;        // see tensor_core.h
  const Stored* keys;          // of the head, in the first block
  long long values;            // so far behind the keys
  Slot next;                   // of the key of this lane that is brought next
  int next_block;
  const Stored* rows[kTurns];  // that this lane brings, from its first dimension on
  unsigned queries[kSteps][4];
  float slope[2];
  float scores[2][4];
  float out[kColumns][4] = {};
  float greatest[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  __device__ __forceinline__ Decode(const Call& call, const Row& row, Shared& shared)
      : call(call), row(row), shared(shared), scorer(Scorer::of(call)),
        share(Share::at(call, row, kRows)) {
    warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    g = lane / 4, t = lane % 4;
    keys = static_cast<const Stored*>(call.keys) + share.kv_head * call.cache_head;
    values = static_cast<const Stored*>(call.values) - static_cast<const Stored*>(call.keys);
  }

  /// The first dimension of a pair in a fragment of queries; `half`: of the fragment's columns.
  __device__ __forceinline__ int query_dim(int step, int half) const {
    return step * 16 + (kIsWidened ? t * 4 + half * 2 : half * 8 + t * 2);
  }
  /// The dimension of one of the two columns of the result that this lane has.
  __device__ __forceinline__ int out_dim(int column, int k) const {
    return kIsWidened ? column / 2 * 16 + (t * 2 + k) * 2 + column % 2 : column * 8 + t * 2 + k;
  }

  __device__ __forceinline__ void load_queries() {
    const T* from = static_cast<const T*>(call.query) + row.token * call.query_token;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int head = share.head + i * 8 + g;
      bool is_there = i * 8 + g < share.heads;
      slope[i] = is_there ? scorer.slope(call, head) : 0;
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          int dim = query_dim(step, half);
          unsigned& to = queries[step][half * 2 + i];
          to = 0;
          if (is_there && dim < call.dim)
            to = *reinterpret_cast<const unsigned*>(from + head * call.query_head + dim);
        }
    }
  }

  /// The position of the first key of this warp in a step.
  __device__ __forceinline__ int key_at(int step) const {
    return share.begin + (step * kWarps + warp) * kKeys;
  }

  __device__ __forceinline__ void attend() {
    int steps = (share.end - key_at(0) + kWarps * kKeys - 1) / (kWarps * kKeys);
    find_next(0);
#pragma unroll
    for (int step = 0; step < kStages; ++step) {
      bring_keys(step);
      bring_values(step);
    }
    for (int step = 0; step < steps; ++step) {
      Stage& stage = shared.stages[warp][step % kStages];
      copy_wait<kStages * 2 - 1>();
      __syncwarp();  // the keys are there
      multiply_queries_and_keys(stage.keys);
      float scale = kIsWidened ? own_scale(stage, step) : 1;
      __syncwarp();  // all have used the keys
      bring_keys(step + kStages);
      weigh(key_at(step), scale);
      copy_wait<kStages * 2 - 1>();
      __syncwarp();  // the values are there
      multiply_weights_and_values(stage.values);
      __syncwarp();  // all have used the values
      bring_values(step + kStages);
    }
  }

  /// Where this lane's key of a step is. The last key stands for those after it, whose weights will
  /// be zeros.
  __device__ __forceinline__ Slot slot_of(int step) const {
    return Slot::of(call, max(0, min(key_at(step) + lane % kKeys, share.end - 1)));
  }

  /// Looks up the block of this lane's key of a step; it is not waited for until it is used.
  __device__ __forceinline__ void find_next(int step) {
    next = slot_of(step);
    next_block = __ldg(row.sequence.table + next.entry);
  }

  __device__ __forceinline__ void bring_keys(int step) {
    Stage& stage = shared.stages[warp][step % kStages];
    if (key_at(step) < share.end) {
      // found anew where there are few registers
      int offset = kDim <= 128 ? next.offset : slot_of(step).offset;
      Place place = Place::of(call, next_block, offset);
      long long own = reinterpret_cast<long long>(keys + place.row);
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn)
        rows[turn] = reinterpret_cast<const Stored*>(__shfl_sync(~0u, own, row_of(turn))) +
                     lane % kLanes * kPiece;
      if constexpr (kIsWidened)
        copy_async<4>(&stage.scales[lane],
                      keys + (place.scale & ~3ll) + (lane < kKeys ? 0 : values), true);
      bring(stage.keys, 0);
      find_next(step + 1);
    }
    copy_commit();
  }

  __device__ __forceinline__ void bring_values(int step) {
    if (key_at(step) < share.end) bring(shared.stages[warp][step % kStages].values, values);
    copy_commit();
  }

  /// The row of a tile that this lane brings in a turn.
  __device__ __forceinline__ int row_of(int turn) const {
    return turn * (32 / kLanes) + lane / kLanes;
  }

  /// Starts to bring what lies `beyond` the rows; zeros stand for dimensions that there are not.
  __device__ __forceinline__ void bring(Rows& to, long long beyond) {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn)
#pragma unroll
      for (int i = 0; i < kPieces; i += kLanes) {
        int dim = (i + lane % kLanes) * kPiece;
        copy_async<kPiece * sizeof(Stored)>(&to.at[row_of(turn)][dim],
                                            rows[turn] + beyond + i * kPiece, dim < call.dim);
      }
  }

  /// The scale of this lane's key, or in the upper half of the warp of its value.
  __device__ __forceinline__ float own_scale(const Stage& stage, int step) const {
    return scale_of(stage.scales[lane] >> slot_of(step).offset % 4 * 8 & 0xff);
  }
  /// Multiplies the scores of each key by the scale that a lane has; `first`: that of the first key.
  __device__ __forceinline__ void scale_columns(float scale, int first) {
#pragma unroll
    for (int column = 0; column < 2; ++column)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float factor = __shfl_sync(~0u, scale, first + column * 8 + t * 2 + k);
        scores[column][k] *= factor;
        scores[column][2 + k] *= factor;
      }
  }

  __device__ __forceinline__ void multiply_queries_and_keys(const Rows& rows) {
#pragma unroll
    for (int column = 0; column < 2; ++column)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[column][i] = 0;
#pragma unroll
    for (int unit = 0; unit < kDim / kUnit; unit += 2) {
      unsigned b[4];
      load_matrices(b, &rows.at[lane / 16 * 8 + lane % 8][(unit + lane / 8 % 2) * kUnit]);
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        const unsigned* pair = b + column * 2;
        if constexpr (kIsWidened) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            unsigned low, high;
            widen<T>(pair[i], low, high);
            multiply_add<T>(scores[column], queries[unit + i], low, high);
          }
        } else {
          multiply_add<T>(scores[column], queries[unit / 2], pair[0], pair[1]);
        }
      }
    }
  }

  /// Makes weights of the scores of the keys from `first` on.
  __device__ __forceinline__ void weigh(int first, float scale) {
    if constexpr (kIsWidened) scale_columns(scale, 0);
    bool is_product = scorer.is_product();  // then scores are multiplied when they are used
    if (!is_product) finish_scores();
    bool is_cut = first + kKeys > share.end;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i && share.heads <= 8) continue;  // the scores of no head are zeros
      if (is_cut || scorer.is_biased) place_row(i, first);
      weigh_row(i, is_product ? scorer.inner : 1);
    }
    if constexpr (kIsWidened) scale_columns(scale, kKeys);
  }

  __device__ __forceinline__ void finish_scores() {
#pragma unroll
    for (int column = 0; column < 2; ++column)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[column][i] = scorer.score(scores[column][i]);
  }

  /// Biases the scores of one of this lane's rows, and leaves out keys that there are not.
  __device__ __forceinline__ void place_row(int i, int first) {
#pragma unroll
    for (int column = 0; column < 2; ++column)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        int position = first + column * 8 + t * 2 + k;
        float& score = scores[column][i * 2 + k];
        score -= slope[i] * (row.position - position);
        if (position >= share.end) score = -INFINITY;
      }
  }

  /// Of one of this lane's rows, whose scores are in multiples of `unit`.
  __device__ __forceinline__ void weigh_row(int i, float unit) {
    float top = greatest[i];
#pragma unroll
    for (int column = 0; column < 2; ++column)
      top = fmaxf(top, fmaxf(scores[column][i * 2], scores[column][i * 2 + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    float base = top == -INFINITY ? 0 : top * unit;
    rescale_row(i, exp2_of(greatest[i] * unit - base));
    greatest[i] = top;
#pragma unroll
    for (int column = 0; column < 2; ++column)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float& score = scores[column][i * 2 + k];
        score = exp2_of(score * unit - base);
        sum[i] += score;
      }
  }

  __device__ __forceinline__ void rescale_row(int i, float factor) {
    sum[i] *= factor;
    if (!__any_sync(~0u, factor != 1)) return;  // the greatest scores are mostly found early
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      out[column][i * 2] *= factor;
      out[column][i * 2 + 1] *= factor;
    }
  }

  __device__ __forceinline__ void multiply_weights_and_values(const Rows& rows) {
    unsigned a[4];  // rounded
#pragma unroll
    for (int i = 0; i < 4; ++i)
      a[i] = pack<Weight>(scores[i / 2][i % 2 * 2], scores[i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int unit = 0; unit < kDim / kUnit; unit += 2) {
      unsigned b[4];
      load_transposed(b, &rows.at[lane % 16][(unit + lane / 16) * kUnit]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const unsigned* pair = b + i * 2;
        if constexpr (kIsWidened) {  // of two keys, numbers of two dimensions
          unsigned low[2], high[2];
#pragma unroll
          for (int half = 0; half < 2; ++half)
            widen<Weight>(__byte_perm(pair[half], 0, 0x3120), low[half], high[half]);
          multiply_add<Weight>(out[(unit + i) * 2], a, low[0], low[1]);
          multiply_add<Weight>(out[(unit + i) * 2 + 1], a, high[0], high[1]);
        } else {
          multiply_add<Weight>(out[unit + i], a, pair[0], pair[1]);
        }
      }
    }
  }

  __device__ __forceinline__ void leave_joint() {
    float unit = scorer.is_product() ? scorer.inner : 1;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float all = sum[i];
      all += __shfl_xor_sync(~0u, all, 1);
      all += __shfl_xor_sync(~0u, all, 2);
      int head = i * 8 + g;
      if (head >= share.heads) continue;
      if (t == 0) {
        shared.joint.greatest[warp][head] = greatest[i] * unit;
        shared.joint.sum[warp][head] = all;
      }
#pragma unroll
      for (int column = 0; column < kColumns; ++column)
#pragma unroll
        for (int k = 0; k < 2; ++k)
          shared.joint.values[warp][head][out_dim(column, k)] = out[column][i * 2 + k];
    }
  }
};
