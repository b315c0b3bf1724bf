// Products of bfloat16 with codes in tile registers: codes become bfloat16, and these are multiplied as other
// weights are (amx_matmul.h).
//
// A weight is exact in float32, but for an offset, and is rounded once to bfloat16: to the nearest, and halfway
// to the greater magnitude. Where rows are few, 32 inputs of a panel at a time are widened just before they are
// multiplied, and never leave the nearest cache; where they are many, some panels are widened while those before
// them are multiplied with all rows. The additions are the same for any number of rows, so that a row's bits
// do not depend on the batch.
#pragma once

#include "amx_blocks.h"
#include "packed_codes.h"

constexpr int STEP_NUMBERS = TILE_DEPTH * PANEL;  // of a step of a panel
constexpr int HALF_STEP = TILE_DEPTH / 2;         // inputs that are widened at once: the smallest group
constexpr int FAR = 16384, NEAR = 2048;           // bytes of codes ahead, fetched into the next and the nearest cache
constexpr int RING_STEPS = 8;                     // a power of two
constexpr int LEAD_STEPS = 2;                     // that are widened before a step is multiplied
constexpr int64_t SET_STEPS = 64;                 // of panels that are multiplied with the same rows: 128 KiB

// a * b + c, rounded once.
INLINE vf fused_multiply_add(vf a, vf b, vf c) {
#if defined(__FMA__) || defined(__AVX512F__)
  return multiply_add(a, b, c);
#else
  vf result;
  for (int i = 0; i < WIDTH; i++) result[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return result;
#endif
}

INLINE vi rotated(vi word, int bits) {
  typedef uint32_t vu __attribute__((vector_size(WIDTH * 4)));
  return bits ? word << bits | (vi)((vu)word >> (32 - bits)) : word;
}

// How codes of BITS bits become floats: a code whose lowest bit is bit PLACE of a mantissa, under the exponent of
// 2^(23 - PLACE), is the float 2^(23 - PLACE) + code. Multiplied with the scale, which has 11 bits, and less the
// same multiple of 2^(23 - PLACE) + middle, which has at most 13, that is a weight, and no number on the way is
// rounded. One rotation of a word of codes brings several of them to such places.
template <int BITS>
struct Places;
template <>
struct Places<8> {
  static constexpr int COUNT = 2, FIRST = 7, APART = 8, MIDDLE = 128;
  static constexpr int rotation(int code) { return code < 2 ? 7 : 23; }
  static constexpr int place(int code) { return code % 2; }
};
template <>
struct Places<4> {
  static constexpr int COUNT = 3, FIRST = 8, APART = 4, MIDDLE = 8;
  static constexpr int rotation(int code) { return code < 2 ? 8 : code < 5 ? 0 : 20; }
  static constexpr int place(int code) { return code < 2 ? code : (code - 2) % 3; }
};

// The scales of WIDTH columns of a group, and what is added for each place.
template <int BITS>
struct Widener {
  using P = Places<BITS>;
  vf scale, base[P::COUNT];

  Widener(const CodeFormat& format, const uint8_t* group, int column) {
    const GroupScales scales(format, group, column);
    const vf factor = splat(format.factor);
    scale = scales.scale * factor;
#pragma GCC unroll 3
    for (int i = 0; i < P::COUNT; i++) {
      base[i] = splat(-float((1 << (23 - P::FIRST - i * P::APART)) + P::MIDDLE)) * scale;
      if (scales.has_offset) base[i] = fused_multiply_add(scales.offset, factor, base[i]);
    }
  }
  // Weights of code CODE of each word, counted from the lowest bits.
  template <int CODE>
  ALWAYS_INLINE vf weights(vi words) const {
    constexpr int PLACE = P::FIRST + P::place(CODE) * P::APART;
    const vi bits = rotated(words, P::rotation(CODE)) & splat_int(((1 << BITS) - 1) << PLACE);
    return fused_multiply_add((vf)(bits | splat_int((150 - PLACE) << 23)), scale, base[P::place(CODE)]);
  }
  // Those of two codes as pairs of bfloat16.
  template <int EVEN, int ODD>
  ALWAYS_INLINE void put_pairs(vi words, bf16* line) const {
    typedef uint32_t vu __attribute__((vector_size(WIDTH * 4)));
    const vi half = splat_int(0x8000), even = (vi)weights<EVEN>(words) + half, odd = (vi)weights<ODD>(words) + half;
    const vi pairs = (vi)((vu)even >> 16) | (odd & splat_int(-65536));
    memcpy((void*)line, &pairs, sizeof pairs);
  }
  // A word's inputs, in the order in which `pack_column` stores them, to lines of pairs.
  ALWAYS_INLINE void widen(vi words, bf16* line) const {
    constexpr int LINE = PANEL * 2;
    if constexpr (BITS == 8) {
      put_pairs<0, 1>(words, line);
      put_pairs<2, 3>(words, line + LINE);
    } else {
      put_pairs<0, 2>(words, line);
      put_pairs<4, 6>(words, line + LINE);
      put_pairs<1, 3>(words, line + 2 * LINE);
      put_pairs<5, 7>(words, line + 3 * LINE);
    }
  }
};

// HALF_STEP inputs of a panel, from input `first` of the group at `group`. What lies `ahead` is fetched meanwhile.
template <int BITS>
INLINE void widen_half(const CodeFormat& format, const uint8_t* group, int64_t first, const uint8_t* ahead,
                       bf16* place) {
  constexpr int INPUTS = 32 / BITS, LINE = PANEL * 4;  // of a line of words
  const uint8_t* codes = group + first * PANEL * BITS / 8;
  for (int c = 0; c < PANEL; c += WIDTH) {
    const Widener<BITS> widener(format, group, c);
#pragma GCC unroll 4
    for (int i = 0; i < HALF_STEP / INPUTS; i++) {
      vi words;
      memcpy(&words, codes + i * LINE + c * 4, sizeof words);
      __builtin_prefetch(ahead + i * LINE + c * 4, 0, 2);
      __builtin_prefetch(ahead + i * LINE + c * 4 - (FAR - NEAR), 0, 3);
      widener.widen(words, place + i * INPUTS * PANEL + c * 2);
    }
  }
}

// Consecutive panels of a weight; of a gated product those of gates and of up in turns.
struct CodeRun {
  const uint8_t* streams[2];
  int64_t panels, num_streams;
};

// Widens the panels of a run into a ring of steps.
template <int BITS>
class Widening {
 public:
  Widening(const CodeFormat& format, int64_t columns, const CodeRun& run, bf16* ring, int64_t ring_steps,
           int64_t blocks)
      : format_(format), run_(run), groups_(format.groups(columns)), halves_(2 * tile_steps(columns)),
        group_halves_(format.group / HALF_STEP), group_bytes_(format.group_bytes()),
        half_bytes_(group_bytes_ / group_halves_), blocks_(blocks), ring_(ring),
        end_(ring + ring_steps * STEP_NUMBERS), place_(ring) {
    begin_panel();
  }

  // Keeps pace with a product: of every `blocks` steps that it multiplies, one is widened.
  ALWAYS_INLINE void step(int64_t) {
    for (credit_ += 2; credit_ >= blocks_; credit_ -= blocks_) widen();
  }

  // The next half of a step.
  ALWAYS_INLINE void widen() {
    if (panel_ == run_.panels) return;
    if (group_ == groups_)
      memset((void*)place_, 0, HALF_STEP * PANEL * sizeof(bf16));
    else
      widen_half<BITS>(format_, codes_, half_of_group_ * HALF_STEP, ahead(), place_);
    place_ += HALF_STEP * PANEL;
    if (place_ == end_) place_ = ring_;
    if (group_ < groups_ && ++half_of_group_ == group_halves_) {
      half_of_group_ = 0;
      group_++;
      codes_ += group_bytes_;
    }
    if (++half_ < halves_) return;
    if (++stream_ == run_.num_streams) stream_ = 0, panel_++;
    begin_panel();
  }

 private:
  const uint8_t* panel_at(int64_t stream, int64_t panel) const {
    return run_.streams[stream] + panel * groups_ * group_bytes_;
  }
  void begin_panel() {
    half_ = group_ = half_of_group_ = 0;
    codes_ = panel_at(stream_, panel_);
    panel_end_ = codes_ + groups_ * group_bytes_;
    following_ = stream_ + 1 < run_.num_streams ? panel_at(stream_ + 1, panel_) : panel_at(0, panel_ + 1);
  }
  // FAR bytes on, in the order in which panels are widened
  ALWAYS_INLINE const uint8_t* ahead() const {
    const uint8_t* place = codes_ + half_of_group_ * half_bytes_ + FAR;
    return place < panel_end_ ? place : following_ + (place - panel_end_);
  }

  const CodeFormat format_;
  const CodeRun run_;
  const int64_t groups_, halves_, group_halves_, group_bytes_, half_bytes_, blocks_;
  bf16 *const ring_, *const end_;
  bf16* place_;
  const uint8_t *codes_ = nullptr, *panel_end_ = nullptr, *following_ = nullptr;
  int64_t panel_ = 0, stream_ = 0, half_ = 0, group_ = 0, half_of_group_ = 0, credit_ = 0;
};

// Memory of a thread for products with widened codes.
struct WidenedScratch {
  static constexpr int64_t BLOCK_SUMS = TILE_BLOCK * PANEL;

  float* sums;  // of two blocks, for both streams
  bf16 *copied, *ring;
  int64_t ring_steps;

  // Panels, of each stream, that are multiplied with a block of rows before the next block.
  static int64_t panels_of_set(int64_t columns, int64_t streams) {
    return std::max<int64_t>(1, SET_STEPS / (streams * tile_steps(columns)));
  }
  // Steps of the ring that no product of these rows and at most so many columns exceeds: two sets of panels, where
  // a set is SET_STEPS at most, or a single panel of each stream.
  static int64_t most_steps(int64_t rows, int64_t columns) {
    return rows > TILE_BLOCK ? std::max(2 * SET_STEPS, 2 * 2 * tile_steps(columns)) : RING_STEPS;
  }
  static size_t bytes(int64_t rows, int64_t columns) {
    if (columns == 0) return 0;  // no weight is quantised
    return Workspace::bytes_for<float>(4 * BLOCK_SUMS) +
           Workspace::bytes_for<bf16>(Scratch<bf16>::copies(rows, columns)) +
           Workspace::bytes_for<bf16>(most_steps(rows, columns) * STEP_NUMBERS);
  }
  WidenedScratch(Workspace& memory, int64_t rows, int64_t columns) {
    if (columns == 0) return;
    sums = memory.take<float>(4 * BLOCK_SUMS);
    copied = memory.take<bf16>(Scratch<bf16>::copies(rows, columns));
    ring_steps = most_steps(rows, columns);
    ring = memory.take<bf16>(ring_steps * STEP_NUMBERS);
  }
};

// One item of work: `rows` of activations times a run of panels. `finish` finds the sums of up BLOCK_SUMS behind
// those of gates.
template <int BITS, typename Finish>
static void multiply_widened(const Activations& x, int64_t first_row, int64_t rows, int64_t columns,
                             const CodeFormat& format, const CodeRun& run, int64_t first_panel,
                             const WidenedScratch& scratch, const Finish& finish) {
  constexpr int64_t SUMS = WidenedScratch::BLOCK_SUMS;
  const int64_t steps = tile_steps(columns), streams = run.num_streams;
  const int64_t blocks = (rows + TILE_BLOCK - 1) / TILE_BLOCK;
  const bool is_single = blocks == 1;
  const int64_t set = is_single ? 1 : WidenedScratch::panels_of_set(columns, streams);
  const int64_t ring_steps = is_single ? RING_STEPS : 2 * set * streams * steps;
  if (ring_steps > scratch.ring_steps) __builtin_trap();
  Widening<BITS> widening(format, columns, run, scratch.ring, ring_steps, blocks);
  for (int64_t i = 0; i < 2 * (is_single ? LEAD_STEPS : set * streams * steps); i++) widening.widen();
  Pending<Finish> pending(finish);
  int64_t turn = 0;
  auto multiply_panel = [&](const TileRows* groups, bool are_two, int64_t panel, float* sums) {
    for (int64_t s = 0; s < streams; s++, sums += SUMS) {
      Stripes stripes{scratch.ring, scratch.ring + STRIPE_STEP};
      const int64_t begin = (panel * streams + s) * steps;
      stripes.begin = (is_single ? begin : begin % ring_steps) * STEP_NUMBERS;
      if (is_single) stripes.mask = RING_STEPS * STEP_NUMBERS - 1;
      if (are_two)
        multiply_block<2>(groups, stripes, steps, widening, pending, sums);
      else
        multiply_block<1>(groups, stripes, steps, widening, pending, sums);
    }
  };
  for (int64_t begin = 0; begin < run.panels; begin += set)
    for (int64_t first = 0; first < rows; first += TILE_BLOCK) {
      const int64_t count = std::min<int64_t>(TILE_BLOCK, rows - first);
      TileRows groups[2] = {x.at(first), {}};
      if (count > TILE_ROWS) groups[1] = x.at(first + TILE_ROWS);
      for (int64_t panel = begin; panel < std::min(run.panels, begin + set); panel++, turn = 1 - turn) {
        float* sums = scratch.sums + turn * 2 * SUMS;
        multiply_panel(groups, count > TILE_ROWS, panel, sums);
        pending.take(pending.left());
        pending.put(sums, first_row + first, count, (first_panel + panel) * PANEL);
      }
    }
  pending.take(pending.left());
}

// Distributes `panels` over the team and multiplies. Tiles have as many rows as there are, if that is less than a
// tile has: a product of tiles takes time for each row.
template <typename P, typename Finish>
INLINE void multiply_codes_in_tiles(const Team& team, const P& p, const QuantizedWeight& weight, int64_t panels,
                                    int64_t streams, const WidenedScratch& scratch, const Finish& finish) {
  const int64_t size = rows_of_item(p.rows, p.columns);
  const int64_t bytes = weight.format.panel_bytes(p.columns);
  const int tile_rows = int(std::max<int64_t>(1, std::min<int64_t>(TILE_ROWS, p.rows)));
  const TileShape shape(64, tile_rows);
  Activations activations(scratch.copied, tile_rows);
  int64_t held = -1;
  share_panels(team, p.rows, size, panels, 1, [&](int64_t block, int64_t begin, int64_t end, auto&) {
    const int64_t first = block * size, some = std::min<int64_t>(size, p.rows - first);
    if (block != held) activations.set(p.x + first * p.x_stride, p.x_stride, some, p.columns);
    held = block;
    const uint8_t* codes = weight.packed + begin * bytes;
    const CodeRun run{{codes, codes + panels * bytes}, end - begin, streams};
    auto multiply = weight.format.bits == 8 ? multiply_widened<8, Finish> : multiply_widened<4, Finish>;
    multiply(activations, first, some, p.columns, weight.format, run, begin, scratch, finish);
  });
}
