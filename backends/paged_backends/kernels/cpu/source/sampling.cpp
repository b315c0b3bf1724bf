// Sampling tokens from rows of logits, greedily or at random: C functions without state.
#include <algorithm>
#include <functional>
#include <vector>

#include "team.h"

// -------------------------------------------------------------------- the largest

struct Best {
  float value;
  int64_t place;
};

// The first index of the largest of begin .. end; NaN counts as the largest.
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

// places [rows]: index of the largest of each row of logits [rows, width]; `found` is [rows * team.size].
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

// -------------------------------------------------------------------- random sampling

// Sampling parameters of a row; see `draw` of `tensor_kernels.py`.
struct Choice {
  double temperature, min_p, top_k, top_p, uniform;
};

struct Token {
  float logit;
  int32_t id;
  float weight;
};

INLINE void sort_tokens(std::vector<Token>& tokens) {
  std::sort(tokens.begin(), tokens.end(), [](const Token& a, const Token& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  });
}

// The first of the `count` tokens, best first, at which the cumulative weight exceeds `target`.
INLINE int64_t token_at(const std::vector<Token>& tokens, int64_t count, double target) {
  int64_t found = 0;
  double before = 0;
  for (int64_t n = 0; n < count && tokens[size_t(n)].weight > 0; n++) {
    found = n;
    before += tokens[size_t(n)].weight;
    if (before > target) break;
  }
  return tokens[size_t(found)].id;
}

// One row of logits. A token's weight is e^((logit - best) / temperature), or nothing if that is below
// min_p. Tokens are ordered by logit, best first, and equals by id.
template <typename T>
class Row {
 public:
  static constexpr int64_t SPAN = 64;  // tokens whose sum of weights and best logit are stored

  explicit Row(int64_t width)
      : width_(width), masses_(size_t(spans())), bests_(size_t(spans())) {}

  int64_t width() const { return width_; }
  int64_t spans() const { return (width_ + SPAN - 1) / SPAN; }
  double total() const { return total_; }

  void survey(const T* logits, const Choice& choice) {
    logits_ = logits;
    min_p_ = float(choice.min_p);
    scale_ = float(1.0 / choice.temperature);
    best_ = -INFINITY;
    for (int64_t span = 0; span < spans(); span++) {
      vf best = splat(-INFINITY);
      for (int64_t i = span * SPAN; i < end_of(span); i += WIDTH) best = largest(best, at(i));
      bests_[size_t(span)] = largest_of(best);
      best_ = std::max(best_, bests_[size_t(span)]);
    }
    total_ = 0;
    for (int64_t span = 0; span < spans(); span++) {
      vf sum = splat(0.0f);
      for (int64_t i = span * SPAN; i < end_of(span); i += WIDTH) sum = sum + weights(below(at(i)));
      masses_[size_t(span)] = sum_of(sum);
      total_ += masses_[size_t(span)];
    }
  }

  // Logits i .. i + WIDTH; minus infinity behind the last one.
  vf at(int64_t i) const {
    vf value = load_upto(logits_ + i, width_ - i);
    for (int64_t lane = width_ - i; lane < WIDTH; lane++) value[lane] = -INFINITY;
    return value;
  }
  // (best logit - logit) / temperature; infinite for excluded tokens at any temperature.
  vf below(vf logits) const {
    const vf endless = splat(INFINITY);
    return choose(logits == splat(-INFINITY), endless, (splat(best_) - logits) * splat(scale_));
  }
  vf weights(vf below) const {
    vf weight = exp_of(splat(0.0f) - below);
    return choose(weight < splat(min_p_), splat(0.0f), weight);
  }
  Token token(int64_t id) const {
    float logit = to_float(logits_[id]);
    return {logit, int32_t(id), weights(below(splat(logit)))[0]};
  }

  // The token at which the cumulative weight, in the order of ids, exceeds `share` of the total.
  int64_t pick(double share) const {
    double target = share * total_, before = 0;
    int64_t chosen = 0;
    for (int64_t span = 0; span < spans(); span++) {
      if (masses_[size_t(span)] <= 0) continue;
      chosen = span;
      if (before + masses_[size_t(span)] > target) break;
      before += masses_[size_t(span)];
    }
    std::vector<Token> tokens;
    for (int64_t id = chosen * SPAN; id < end_of(chosen); id++)
      if (Token token = this->token(id); token.weight > 0) tokens.push_back(token);
    return token_at(tokens, int64_t(tokens.size()), target - before);
  }

  // At least the `count` best tokens, sorted: tokens below the `count`-th best of the spans' best logits
  // are not among them.
  void best(int64_t count, std::vector<Token>& tokens) const {
    float least = -INFINITY;
    if (count < spans()) {
      std::vector<float> bests(bests_);
      std::nth_element(bests.begin(), bests.begin() + count - 1, bests.end(), std::greater<float>());
      least = bests[size_t(count - 1)];
    }
    tokens.clear();
    for (int64_t span = 0; span < spans(); span++)
      if (bests_[size_t(span)] >= least)
        for (int64_t id = span * SPAN; id < end_of(span); id++)
          if (to_float(logits_[id]) >= least) tokens.push_back(token(id));
    sort_tokens(tokens);
  }

 private:
  int64_t end_of(int64_t span) const { return std::min(width_, (span + 1) * SPAN); }

  const int64_t width_;
  const T* logits_ = nullptr;
  float best_ = 0, scale_ = 1, min_p_ = 0;
  double total_ = 0;
  std::vector<float> masses_, bests_;
};

// All tokens of a row in classes by logit, for parameters that keep many tokens: only the few classes
// at the limits must be sorted, not the whole row.
template <typename T>
class Classes {
 public:
  explicit Classes(int64_t width) : classes_(size_t(width)) {}

  int64_t draw(const Row<T>& row, const Choice& choice) {
    row_ = &row;
    held_ = -1;
    classify();
    return pick(keep(choice), choice.uniform);
  }

 private:
  static constexpr int PER_UNIT = 8;
  static constexpr int COUNT = 87 * PER_UNIT + 1;  // further below, weights are zero in float32

  // The tokens that pass the filters: all classes before `last`, and the first `count` tokens of `last`.
  struct Kept {
    int last;
    int64_t count;
    double mass;  // of these tokens of the last class
  };

  void classify() {
    std::fill(count_, count_ + COUNT, 0);
    std::fill(mass_, mass_ + COUNT, 0.0);
    for (int64_t i = 0; i < row_->width(); i += WIDTH) {
      vf below = row_->below(row_->at(i)), weight = row_->weights(below);
      vf place = below * splat(float(PER_UNIT)), last = splat(float(COUNT - 1));
      place = choose(place < last, place, last);
      vi number = __builtin_convertvector(place, vi);
      for (int lane = 0; lane < std::min<int64_t>(WIDTH, row_->width() - i); lane++) {
        int which = weight[lane] > 0 ? number[lane] : COUNT;
        classes_[size_t(i + lane)] = uint16_t(which);
        if (which == COUNT) continue;
        count_[which]++;
        mass_[which] += weight[lane];
      }
    }
  }

  Kept keep(const Choice& choice) {
    int64_t passed = 0;
    for (int64_t count : count_) passed += count;
    int64_t limit = choice.top_k > 0 ? std::min<int64_t>(int64_t(choice.top_k), passed) : passed;
    Kept kept{0, 0, 0};
    double total = 0;
    for (int64_t before = 0;; kept.last++) {
      kept.count = std::min(limit - before, count_[kept.last]);
      kept.mass = kept.count < count_[kept.last] ? mass_of(kept.last, kept.count) : mass_[kept.last];
      total += kept.mass;
      before += kept.count;
      if (before >= limit) break;
    }
    if (choice.top_p >= 1) return kept;
    // a token is kept if the tokens before it have less than top_p of the weight
    double reach = choice.top_p * total, before = 0;
    for (int c = 0; c < kept.last; c++) {
      if (before + mass_[c] >= reach) {
        kept = {c, count_[c], mass_[c]};
        break;
      }
      before += mass_[c];
    }
    const auto& tokens = members(kept.last);
    double mass = 0;
    for (int64_t n = 0; n < kept.count; n++) {
      if (before + mass >= reach && before + mass > 0) {
        kept.count = n;
        kept.mass = mass;
        break;
      }
      mass += tokens[size_t(n)].weight;
    }
    return kept;
  }

  int64_t pick(const Kept& kept, double share) {
    double total = kept.mass, before = 0;
    for (int c = 0; c < kept.last; c++) total += mass_[c];
    double target = share * total;
    int chosen = 0;
    for (int c = 0; c <= kept.last; c++) {
      double mass = c == kept.last ? kept.mass : mass_[c];
      if (mass <= 0) continue;
      chosen = c;
      if (before + mass > target) break;
      if (c < kept.last) before += mass;
    }
    return token_at(members(chosen), chosen == kept.last ? kept.count : count_[chosen],
                    target - before);
  }

  double mass_of(int which, int64_t count) {
    double mass = 0;
    const auto& tokens = members(which);
    for (int64_t n = 0; n < count; n++) mass += tokens[size_t(n)].weight;
    return mass;
  }

  // The tokens of a class, best first.
  const std::vector<Token>& members(int which) {
    if (held_ == which) return members_;
    held_ = which;
    members_.clear();
    for (int64_t first = 0; first < row_->width(); first += Row<T>::SPAN) {
      int64_t end = std::min(first + Row<T>::SPAN, row_->width());
      int any = 0;
      for (int64_t id = first; id < end; id++) any |= classes_[size_t(id)] == which;
      if (!any) continue;
      for (int64_t id = first; id < end; id++)
        if (classes_[size_t(id)] == which) members_.push_back(row_->token(id));
    }
    sort_tokens(members_);
    return members_;
  }

  const Row<T>* row_ = nullptr;
  std::vector<uint16_t> classes_;
  std::vector<Token> members_;
  int held_ = -1;
  int64_t count_[COUNT];
  double mass_[COUNT];
};

// Samples from one row after another.
template <typename T>
class Drawing {
 public:
  explicit Drawing(int64_t width) : row_(width), classes_(width) {}

  int64_t draw(const T* logits, const Choice& choice) {
    row_.survey(logits, choice);
    bool limited = choice.top_k > 0 && choice.top_k < double(row_.width());
    if (!limited && choice.top_p >= 1) return row_.pick(choice.uniform);
    for (int64_t count : {64, 512}) {
      if (limited) count = int64_t(choice.top_k);
      if (count >= row_.spans() && row_.width() > SORTED_WHOLE) break;
      row_.best(count, best_);
      double total = limited ? mass_of(count) : row_.total(), reach = choice.top_p * total;
      int64_t kept = 0, most = limited ? std::min(count, int64_t(best_.size())) : int64_t(best_.size());
      double mass = 0;
      // a token is kept if the tokens before it have less than top_p of the weight
      while (kept < most && (kept == 0 || choice.top_p >= 1 || mass < reach))
        mass += best_[size_t(kept++)].weight;
      if (limited || mass >= reach || int64_t(best_.size()) == row_.width())
        return token_at(best_, kept, choice.uniform * mass);
      if (mass * 8 < reach) break;  // eight times as many would not be enough
    }
    return classes_.draw(row_, choice);
  }

 private:
  static constexpr int64_t SORTED_WHOLE = 2048;

  double mass_of(int64_t count) const {
    double mass = 0;
    for (int64_t n = 0; n < std::min(count, int64_t(best_.size())); n++) mass += best_[size_t(n)].weight;
    return mass;
  }

  Row<T> row_;
  Classes<T> classes_;
  std::vector<Token> best_;
};

template <typename T>
static void draw(const T* logits, int64_t stride, int64_t rows, int64_t width, const Choice* choices,
                 int64_t* tokens, int threads) {
  work_together(int(std::min<int64_t>(rows, threads)), [&](const Team& team) {
    Drawing<T> drawing(width);
    team.open();
    for (int64_t r = team.take(); r < rows; r = team.take())
      tokens[r] = drawing.draw(logits + r * stride, choices[r]);
  });
}

#pragma GCC visibility push(default)
extern "C" {

// places [rows]: index of the largest of each row of logits [rows, width].
void paged_core_argmax(int type, const void* logits, int64_t stride, int64_t rows, int64_t width,
                       int64_t* places, int threads) {
  std::vector<Best> found(size_t(rows) * size_t(std::max(1, threads)));
  work_together(threads_for(rows * width, threads), [&](const Team& team) {
    if (type)
      argmax(team, (const bf16*)logits, stride, rows, width, places, found.data());
    else
      argmax(team, (const float*)logits, stride, rows, width, places, found.data());
  });
}

// tokens [rows]: sampled from logits [rows, width] with the parameters `choices` [rows].
void paged_core_draw(int type, const void* logits, int64_t stride, int64_t rows, int64_t width,
                     const Choice* choices, int64_t* tokens, int threads) {
  if (type)
    draw((const bf16*)logits, stride, rows, width, choices, tokens, threads);
  else
    draw((const float*)logits, stride, rows, width, choices, tokens, threads);
}

}  // extern "C"
#pragma GCC visibility pop
