// Blocks of a product in tile registers: up to 32 rows of activations times two stripes of 16 columns.
#pragma once

#include "matmul.h"

constexpr int STRIPE_STEP = TILE_COLUMNS * 2;  // numbers from a stripe of a panel to the other

// Rows as tiles read them.
struct TileRows {
  const bf16* first;
  int64_t stride;
};

template <int TILE>
INLINE void load_rows(const TileRows& rows, int64_t k) {
  tile_load<TILE>(rows.first + k, rows.stride * 2);
}

// The rows of an item of work, ready for tiles.
class Activations {
 public:
  // `copied` has room for `Scratch<bf16>::copies` numbers; `tile_rows`: of the tiles that read them
  Activations(bf16* copied, int tile_rows) : copied_(copied), tile_rows_(tile_rows) {}

  void set(const bf16* x, int64_t stride, int64_t rows, int64_t columns) {
    x_ = x;
    stride_ = stride;
    width_ = tile_width(columns);
    copied_from_ = columns % TILE_DEPTH ? 0 : rows / tile_rows_ * tile_rows_;
    int64_t end = (rows + tile_rows_ - 1) / tile_rows_ * tile_rows_;
    for (int64_t r = copied_from_; r < end; r++) {
      bf16* row = copied_ + (r - copied_from_) * width_;
      int64_t count = r < rows ? columns : 0;
      if (count) memcpy((void*)row, x + r * stride, size_t(count) * 2);
      memset((void*)(row + count), 0, size_t(tile_steps(columns) * TILE_DEPTH - count) * 2);
    }
  }
  TileRows at(int64_t row) const {
    if (row < copied_from_) return {x_ + row * stride_, stride_};
    return {copied_ + (row - copied_from_) * width_, width_};
  }

 private:
  bf16* const copied_;
  const int tile_rows_;
  const bf16* x_ = nullptr;
  int64_t stride_ = 0, width_ = 0, copied_from_ = 0;
};

// Sums that are not yet written as results, row by row: `Finish` is called with a row's PANEL sums, its number
// in the product and the number of its first column.
template <typename Finish>
class Pending {
 public:
  explicit Pending(const Finish& finish) : finish(finish) {}

  void put(const float* sums, int64_t row, int64_t count, int64_t column) {
    sums_ = sums;
    row_ = row;
    left_ = count;
    column_ = column;
  }
  int64_t left() const { return left_; }
  ALWAYS_INLINE void take(int64_t count) {
    for (; count > 0 && left_ > 0; count--, left_--, row_++, sums_ += PANEL) finish(sums_, row_, column_);
  }

 private:
  Finish finish;
  const float* sums_ = nullptr;
  int64_t row_ = 0, left_ = 0, column_ = 0;
};

// Two stripes of 16 columns. A step of either lies behind the one before it, in a ring if there is a mask.
struct Stripes {
  const bf16 *first, *second;
  int64_t begin = 0, mask = -1;  // numbers
};

// sums [GROUPS * 16][PANEL] = rows times two stripes, over `steps` of TILE_DEPTH; `meanwhile.step` is called in
// each of them.
template <int GROUPS, typename Meanwhile, typename Finish>
INLINE void multiply_block(const TileRows* rows, const Stripes& stripes, int64_t steps, Meanwhile& meanwhile,
                           Pending<Finish>& pending, float* sums) {
  tile_zero<0>();
  tile_zero<1>();
  if (GROUPS == 2) {
    tile_zero<2>();
    tile_zero<3>();
  }
  const int64_t some = (pending.left() + steps - 1) / steps;
  for (int64_t step = 0; step < steps; step++) {
    const int64_t k = step * TILE_DEPTH, place = (stripes.begin + k * PANEL) & stripes.mask;
    load_rows<4>(rows[0], k);
    tile_load<6>(stripes.first + place, 128);
    tile_dot<0, 4, 6>();
    tile_load<7>(stripes.second + place, 128);
    tile_dot<1, 4, 7>();
    if (GROUPS == 2) {
      load_rows<5>(rows[1], k);
      tile_dot<2, 5, 6>();
      tile_dot<3, 5, 7>();
    }
    meanwhile.step(step);
    pending.take(some);
  }
  tile_store<0>(sums, PANEL * 4);
  tile_store<1>(sums + TILE_COLUMNS, PANEL * 4);
  if (GROUPS == 2) {
    tile_store<2>(sums + TILE_ROWS * PANEL, PANEL * 4);
    tile_store<3>(sums + TILE_ROWS * PANEL + TILE_COLUMNS, PANEL * 4);
  }
}

// Stores a row's sums of a panel as results; for `Pending`.
INLINE auto storing(const Product<bf16>& p) {
  return [p](const float* sums, int64_t row, int64_t column) __attribute__((always_inline)) {
    const int64_t place = row * p.out_stride + column;
    __builtin_prefetch(p.out + place + PANEL, 1);  // the next block's place
    store_panel_row(p.out + place, sums, p.bias ? p.bias + column : nullptr,
                    p.residual ? p.residual + place : nullptr, p.width - column, p.activation);
  };
}
