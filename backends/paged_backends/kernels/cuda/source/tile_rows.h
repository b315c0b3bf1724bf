// Rows of attention of several new tokens, whatever multiplies them: which ones a block of threads
// takes, the softmax of their scores, and how keys and values come to shared memory. See tiles.h.
#pragma once

#include "cache.h"
#include "softmax.h"

/// Of GPUs for which the compiler needs more registers than there are in tiles of 128 numbers, and
/// would spill some: their generation, otherwise 0.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 1000
constexpr int kFewRegisters = 0;
#else
constexpr int kFewRegisters = __CUDA_ARCH__ < 1200 ? 100 : 120;
#endif

/// Rows in shared memory, longer than they must be, so that eight of them lie in different banks.
template <class T, int kCount, int kDim>
struct GappedRows {
  static constexpr int kGap = 8;
  alignas(16) T at[kCount][kDim + kGap];

  __device__ __forceinline__ T* piece(int row, int dim) { return &at[row][dim]; }
};

/// Keys or values of some tokens, as T; in a cache of 8-bit floats they come through an inbox.
///
/// A thread brings the same pieces of every `kStep`-th row: its addresses are a pointer of its own
/// and what is added for a row, in global memory the row's place, in shared memory a constant.
template <class T, class Stored, class Rows, int kDim, int kKeys, int kThreads>
struct KeyTile {
  static constexpr int kPieces = kDim / kPiece, kLanes = kPieces & -kPieces;  // of a row
  static constexpr int kSlices = kPieces / kLanes, kStep = kThreads / kLanes;
  static constexpr int kCount = kKeys / kStep;
  static constexpr int kMost = kIsFloat8<Stored> ? 4 : kFewRegisters == 100 ? 2 : 8;
  static constexpr int kAtOnce = kCount < kMost ? kCount : kMost;
  static_assert(kThreads % kLanes == 0 && kKeys % (kStep * kAtOnce) == 0, "uneven work");

  Rows rows;
  struct Nothing {};
  template <bool kIsNeeded, class Unused = void>
  struct Choice {
    using Type = Inbox<Stored, kCount * kSlices, kThreads>;
  };
  template <class Unused>
  struct Choice<false, Unused> {
    using Type = Nothing;
  };
  typename Choice<kIsFloat8<Stored>>::Type inbox;

  /// Starts to bring the tokens of `places`, which count bytes; all of them are there. Zeros stand
  /// for dimensions that there are not.
  __device__ __forceinline__ void bring(const Call& call, const Stored* head,
                                        const Place* places) {
#pragma unroll
    for (int first = 0; first < kCount; first += kAtOnce) {
      Place some[kAtOnce];  // as many as registers hold: each read after a copy makes copies wait
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) some[i] = places[row_of(first + i)];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) bring_row(call, head, first + i, some[i]);
    }
    copy_commit();
  }
  /// To be called when this thread's copies are there.
  __device__ __forceinline__ void arrive(const Place* places) {
    if constexpr (kIsFloat8<Stored>) {
#pragma unroll 1  // more would take registers
      for (int i = 0; i < kCount; ++i) {
        unsigned shift = unsigned(places[row_of(i)].scale) % 4 * 8;
#pragma unroll
        for (int slice = 0; slice < kSlices; ++slice) {
          int number = i * kSlices + slice;
          float scale = scale_of(inbox.scales[number][threadIdx.x] >> shift & 0xff);
          Floats floats = unscaled(inbox.pieces[number][threadIdx.x]);
#pragma unroll
          for (int d = 0; d < kPiece; ++d) floats.at[d] *= scale;
          floats.rounded<T>().store(rows.piece(row_of(i), dim_of(slice)));
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ int row_of(int i) {
    return int(threadIdx.x) / kLanes + i * kStep;
  }
  static __device__ __forceinline__ int dim_of(int slice) {
    return (int(threadIdx.x) % kLanes + slice * kLanes) * kPiece;
  }
  __device__ __forceinline__ void bring_row(const Call& call, const Stored* head, int i,
                                            const Place& place) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      bool is_there = dim_of(slice) < call.dim;
      const char* from = reinterpret_cast<const char*>(is_there ? head + dim_of(slice) : head);
      if constexpr (kIsFloat8<Stored>) {
        int number = i * kSlices + slice;
        copy_async<8>(&inbox.pieces[number][threadIdx.x], from + place.row, is_there);
        from = reinterpret_cast<const char*>(head) + (place.scale & ~3ll);
        copy_async<4>(&inbox.scales[number][threadIdx.x], from, true);
      } else {
        copy_async<16>(rows.piece(row_of(i), dim_of(slice)), from + place.row, is_there);
      }
    }
  }
};

/// The rows of a block of threads. A lane has of each band of 16 rows the rows g and g + 8, and of
/// eight columns 2t and 2t + 1; see tensor_core.h.
template <class T, class Stored, int kDim, int kWarps, int kBands, int kKeys>
class TileRows {
 public:
  static constexpr int kThreads = kWarps * 32, kRows = kWarps * kBands * 16;

 protected:
  static constexpr int kColumns = kKeys / 8, kDims = kDim / 8;

  const Call& call;
  const Sequence& sequence;
  Scorer scorer;
  int group, kv_head, first_row, rows;  // of the tile, of the sequence
  int warp_row, g, t;                   // first row of the warp in the tile; see tensor_core.h
  int first_position, last_position;    // of the warp's rows; those without any see nothing
  int begin, end;                       // keys that the tile sees
  float out[kBands][kDims][4] = {};
  float scores[kBands][kColumns][4];
  float greatest[kBands][2], sum[kBands][2];

  template <class Tile>
  static __device__ __forceinline__ void run_tile(const Call& call) {
    // those of a sequence's end, which see the most keys, come first
    int block = gridDim.x - 1 - blockIdx.x;
    int index = find(call, block);
    Sequence sequence = Sequence::at(call, index);
    int number = block - first_tile(call, sequence.first_token, index);
    if (sequence.tokens < call.tiles_from || number * kRows >= sequence.tokens * call.group())
      return;
    SIMT_SHARED(typename Tile::Shared, shared);
    Tile tile(call, sequence, shared, number);
    if (tile.begin < tile.end) {
      tile.bring_queries(shared.queries);
      tile.attend();
    }
    tile.store();
  }

  __device__ __forceinline__ TileRows(const Call& call, const Sequence& sequence, int tile)
      : call(call), sequence(sequence), scorer(Scorer::of(call)) {
    group = call.group(), kv_head = blockIdx.y;
    first_row = tile * kRows, rows = sequence.tokens * group;
    warp_row = threadIdx.x / 32 * kBands * 16;
    g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    end = position_of(min(first_row + kRows, rows) - 1) + 1;
    begin = call.window ? max(0, position_of(first_row) + 1 - call.window) / kKeys * kKeys : 0;
    bool has_rows = first_row + warp_row < rows;
    first_position = has_rows ? position_of(first_row + warp_row) : 0;
    last_position =
        has_rows ? position_of(min(first_row + warp_row + kBands * 16, rows) - 1) : -1;
#pragma unroll
    for (int band = 0; band < kBands; ++band)
#pragma unroll
      for (int i = 0; i < 2; ++i) greatest[band][i] = -INFINITY, sum[band][i] = 0;
  }

  /// Of a row of the sequence.
  __device__ __forceinline__ int position_of(int row) const {
    return sequence.position(row / group);
  }
  /// The place in the tile of one of the two rows that this lane has in a band.
  __device__ __forceinline__ int lane_row(int band, int i) const {
    return warp_row + band * 16 + i * 8 + g;
  }

  template <class Rows>
  __device__ __forceinline__ void bring_queries(Rows& to) {
    constexpr int kPieces = kDim / kPiece;
    const T* queries = static_cast<const T*>(call.query);
    for (int i = threadIdx.x; i < kRows * kPieces; i += kThreads) {
      int row = first_row + i / kPieces, dim = i % kPieces * kPiece;
      bool is_there = row < rows && dim < call.dim;
      const T* from = queries;
      if (is_there)
        from += (sequence.first_token + row / group) * call.query_token +
                (kv_head * group + row % group) * call.query_head + dim;
      copy_async<16>(to.piece(i / kPieces, dim), from, is_there);
    }
    // they are of the same group of copies as the first keys
  }

  /// Finds where the keys from `first` on lie. For those beyond the end, which no row sees, the
  /// last key is brought.
  __device__ __forceinline__ void find_places(int first, Place* places) {
    int key = threadIdx.x;
    if (key >= kKeys) return;
    Place place = Place::of(call, sequence, min(first + key, end - 1));
    place.row *= sizeof(Stored);
    places[key] = place;
  }

  /// Makes weights of the scores of the keys from `first` on.
  __device__ __forceinline__ void weigh(int first) {
    bool is_cut = first + kKeys > first_position + 1 ||
                  (call.window && first <= last_position - call.window);
    bool is_product = scorer.is_product();  // then scores are multiplied when they are used
    float unit = is_product ? scorer.inner : 1;
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
      if (!is_product) finish_scores(band);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (is_cut || scorer.is_biased) place_row(band, i, first);
        weigh_row(band, i, unit);
      }
    }
  }

  __device__ __forceinline__ void finish_scores(int band) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores[band][column][i];
        score = scorer.score(score);
      }
  }

  /// Biases the scores of one of this lane's rows, and leaves out the keys that it does not see.
  __device__ __forceinline__ void place_row(int band, int i, int first) {
    int row = min(first_row + lane_row(band, i), rows - 1), position = position_of(row);
    float slope = scorer.slope(call, kv_head * group + row % group);
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        int distance = position - (first + column * 8 + t * 2 + k);
        float& score = scores[band][column][i * 2 + k];
        score -= slope * distance;
        if (distance < 0 || (call.window && distance >= call.window)) score = -INFINITY;
      }
  }

  /// Of one of this lane's rows, whose scores are in multiples of `unit`.
  __device__ __forceinline__ void weigh_row(int band, int i, float unit) {
    float top = greatest[band][i];
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
      top = fmaxf(top, fmaxf(scores[band][column][i * 2], scores[band][column][i * 2 + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    float base = top == -INFINITY ? 0 : top * unit;
    rescale_row(band, i, exp2_of(greatest[band][i] * unit - base));
    greatest[band][i] = top;
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float& score = scores[band][column][i * 2 + k];
        score = exp2_of(score * unit - base);
        sum[band][i] += score;
      }
  }

  __device__ __forceinline__ void rescale_row(int band, int i, float factor) {
    sum[band][i] *= factor;
    if (!__any_sync(~0u, factor != 1)) return;  // the greatest scores are mostly found early
#pragma unroll
    for (int j = 0; j < kDims; ++j) {
      out[band][j][i * 2] *= factor;
      out[band][j][i * 2 + 1] *= factor;
    }
  }

  __device__ __forceinline__ void store() {
    float unit = scorer.is_product() ? scorer.inner : 1;
#pragma unroll
    for (int band = 0; band < kBands; ++band)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float all = sum[band][i];
        all += __shfl_xor_sync(~0u, all, 1);
        all += __shfl_xor_sync(~0u, all, 2);
        int row = first_row + lane_row(band, i);
        if (row >= rows) continue;
        int head = kv_head * group + row % group;
        float factor = reciprocal(call, head, greatest[band][i] * unit, all);
        long long to = static_cast<long long>(sequence.first_token + row / group) * call.heads + head;
#pragma unroll
        for (int j = 0; j < kDims; ++j) {
          int dim = j * 8 + t * 2;
          unsigned pair = pack<T>(out[band][j][i * 2] * factor, out[band][j][i * 2 + 1] * factor);
          if (dim < call.dim)
            *reinterpret_cast<unsigned*>(static_cast<T*>(call.out) + to * call.dim + dim) = pair;
        }
      }
  }

 private:
  /// Before this sequence's, there are at most so many tiles with rows.
  static __device__ __forceinline__ int first_tile(const Call& call, int first_token, int index) {
    return int(static_cast<long long>(first_token) * call.group() / kRows) + index;
  }
  static __device__ __forceinline__ int find(const Call& call, int tile) {
    int low = 0, high = call.sequences;
    while (high - low > 1) {
      int middle = (low + high) / 2;
      (first_tile(call, call.query_start[middle], middle) <= tile ? low : high) = middle;
    }
    return low;
  }
};
