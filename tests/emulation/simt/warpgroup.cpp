// Products of warpgroups on the CPU; see warpgroup.h. Each warp computes its rows.
//
// A product ends when it is waited for: until then its result is poison, and nothing may change
// what it reads. Registers must have been handed over since a thread has used them, and what threads
// have written to shared memory must have been shown to products before the barrier that orders it.
#include "warpgroup.h"

#include <vector>

#include "state.h"

namespace simt {
namespace {

/// A signalling NaN: what is computed with it is another one.
constexpr uint32_t kPoison = 0xff80dead;

/// A descriptor of the PTX manual, "Matrix-descriptor layout".
struct Descriptor {
  unsigned start, leading, stride, width;  // bytes; the width of a swizzled row in pieces

  static Descriptor of(SharedMatrix matrix, Where where) {
    uint64_t bits = uint64_t(SharedMatrix::kUpper) << 32 | matrix.lower;
    constexpr uint64_t kFields =
        0x3fff | 0x3fffull << 16 | 0x3fffull << 32 | 7ull << 49 | 3ull << 62;
    if (bits & ~kFields) fail(where, "descriptor %#llx has unknown bits", (long long)bits);
    if (bits >> 49 & 7) fail(where, "descriptor %#llx has a base offset", (long long)bits);
    constexpr unsigned kWidths[] = {1, 8, 4, 2};
    return {unsigned(bits & 0x3fff) << 4, unsigned(bits >> 16 & 0x3fff) << 4,
            unsigned(bits >> 32 & 0x3fff) << 4, kWidths[bits >> 62]};
  }
  /// Where the piece of 8 numbers of a row lies, if numbers of k follow one another.
  unsigned of_k(unsigned row, unsigned piece) const {
    unsigned next = width == 1 ? leading : 16;
    return swizzle(start + row % 8 * width * 16 + row / 8 * stride + piece * next);
  }
  /// The same if numbers of the other dimension follow one another.
  unsigned transposed(unsigned k, unsigned piece) const {
    if (width == 1) return start + k % 8 * 16 + k / 8 * leading + piece * stride;
    unsigned panel = piece / width * leading + piece % width * 16;
    return swizzle(start + panel + k % 8 * width * 16 + k / 8 * stride);
  }

 private:
  unsigned swizzle(unsigned address) const {
    return address ^ (address >> 7 & (width - 1)) << 4;
  }
};

/// A piece in shared memory, as it was when the product started.
struct Read {
  const char* at;
  uint16_t numbers[8];
};

struct Running {
  Where where;
  int group;
  std::vector<Read> reads;
  const unsigned* a[32];
  unsigned held[32][4];  // what was there
  float* c;              // of the first lane
};

/// Registers for results of products that follow one another.
struct Result {
  float* at[32];
  int columns, running = 0;
  std::vector<float> values;  // of the lanes, one after another

  float* of(int lane) { return values.data() + lane * columns / 2; }
};

struct Held {
  const char* at;
  std::vector<char> bytes;
};

struct Warp {
  int group = 0;
  std::vector<Running> running;
  std::vector<Result> results;
  std::vector<Held> held[32];  // handed over by a lane
  size_t started = 0;
};

/// What the warps of a warpgroup must start alike.
struct Start {
  unsigned a, b;
  int columns;
  bool operator!=(const Start& other) const {
    return a != other.a || b != other.b || columns != other.columns;
  }
};

std::vector<Warp> warps;
std::vector<std::vector<Start>> groups;

Warp& mine() { return warps[self->warp]; }

Read read_piece(unsigned address, Where where) {
  Read read;
  unsigned at = address - 1024;
  if (address < 1024 || at + 16 > state.shared_bytes)
    fail(where, "a product reads byte %d of %zu of shared memory", int(at), state.shared_bytes);
  read.at = state.shared + at;
  touch_by_product(read.at, 16, where);
  std::memcpy(read.numbers, read.at, 16);
  return read;
}

bool is_held(int lane, const void* at, size_t bytes) {
  const char* begin = static_cast<const char*>(at);
  for (const Held& one : mine().held[lane])
    if (begin >= one.at && begin + bytes <= one.at + one.bytes.size())
      return !std::memcmp(begin, one.bytes.data() + (begin - one.at), bytes);
  return false;
}

void forget(int lane, const void* at) {
  std::vector<Held>& all = mine().held[lane];
  const char* place = static_cast<const char*>(at);
  for (size_t i = all.size(); i--;)
    if (place >= all[i].at && place < all[i].at + all[i].bytes.size()) all.erase(all.begin() + i);
}

/// Where the results of these registers are computed; poison is left in the registers.
Result& result_for(const Product* const (&lanes)[32], Where where) {
  for (Result& one : mine().results)
    if (one.at[0] == lanes[0]->c) {
      if (one.columns != lanes[0]->columns)
        fail(where, "products of %d and %d columns share registers", one.columns,
             lanes[0]->columns);
      return one;
    }
  Result& made = mine().results.emplace_back();
  int count = (made.columns = lanes[0]->columns) / 2;
  made.values.resize(32 * count);
  for (int lane = 0; lane < 32; ++lane) {
    float* c = made.at[lane] = lanes[lane]->c;
    if (!is_held(lane, c, count * sizeof(float)))
      fail(where, "registers of the result were used, and not handed over since");
    std::memcpy(made.of(lane), c, count * sizeof(float));
    for (int i = 0; i < count; ++i) std::memcpy(c + i, &kPoison, 4);
  }
  return made;
}

void multiply(const Product* const (&lanes)[32], Running& now, Result& result, Where where) {
  const Product& it = *lanes[0];
  int columns = it.columns, count = columns / 2;
  float a[16][16], c[16][256];
  std::vector<float> b(16 * columns);
  auto read = [&](unsigned address) {
    now.reads.push_back(read_piece(address, where));
    return now.reads.back();
  };
  if (it.a) {
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 8; ++i)
        a[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i % 2 + i / 4 * 8] =
            it.widen(uint16_t(now.held[lane][i / 2] >> i % 2 * 16));
  } else {
    Descriptor from = Descriptor::of(it.shared_a, where);
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < 16; k += 8) {
        Read piece = read(from.of_k(self->warp % 4 * 16 + row, k / 8));
        for (int i = 0; i < 8; ++i) a[row][k + i] = it.widen(piece.numbers[i]);
      }
  }
  Descriptor from = Descriptor::of(it.shared_b, where);
  if (it.is_transposed) {
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < columns; n += 8) {
        Read piece = read(from.transposed(k, n / 8));
        for (int i = 0; i < 8; ++i) b[k * columns + n + i] = it.widen(piece.numbers[i]);
      }
  } else {
    for (int n = 0; n < columns; ++n)
      for (int k = 0; k < 16; k += 8) {
        Read piece = read(from.of_k(n, k / 8));
        for (int i = 0; i < 8; ++i) b[(k + i) * columns + n] = it.widen(piece.numbers[i]);
      }
  }
  auto place = [&](int lane, int i) -> float& {
    return c[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
  };
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < count; ++i) place(lane, i) = it.adds ? result.of(lane)[i] : 0;
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < columns; ++n) c[row][n] += a[row][k] * b[k * columns + n];
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < count; ++i) result.of(lane)[i] = place(lane, i);
}

struct Started {
  const Product* product;
  Where where;
};

/// What the last lane to come does for its warp.
void start_all(uint64_t* values) {
  const Product* lanes[32];
  Where where = reinterpret_cast<Started*>(values[0])->where;
  for (int lane = 0; lane < 32; ++lane) {
    lanes[lane] = reinterpret_cast<Started*>(values[lane])->product;
    if (lanes[lane]->shared_a.lower != lanes[0]->shared_a.lower ||
        lanes[lane]->shared_b.lower != lanes[0]->shared_b.lower ||
        lanes[lane]->adds != lanes[0]->adds)
      fail(where, "lanes start different products");
  }
  size_t group = self->warp / 4;
  if ((group + 1) * 128 > state.clocks.size()) fail(where, "a warpgroup has four warps");
  Start mark{lanes[0]->shared_a.lower, lanes[0]->shared_b.lower, lanes[0]->columns};
  std::vector<Start>& starts = groups[group];
  size_t number = mine().started++;
  if (number == starts.size()) starts.push_back(mark);
  if (starts[number] != mark) fail(where, "the warps of a warpgroup start different products");

  Running now{where, mine().group, {}, {}, {}, lanes[0]->c};
  for (int lane = 0; lane < 32 && lanes[0]->a; ++lane) {
    now.a[lane] = lanes[lane]->a;
    if (!is_held(lane, lanes[lane]->a, 16))
      fail(where, "registers of A were used, and not handed over since");
    std::memcpy(now.held[lane], lanes[lane]->a, 16);
  }
  Result& result = result_for(lanes, where);
  ++result.running;
  multiply(lanes, now, result, where);
  mine().running.push_back(std::move(now));
}

struct Wait {
  int left;
  const Registers* registers;
  int count;
  Where where;

  bool has(const void* at) const {
    for (int i = 0; i < count; ++i)
      if (at >= registers[i].at &&
          at < static_cast<const char*>(registers[i].at) + registers[i].bytes)
        return true;
    return false;
  }
};

void finish(const Running& one, Wait* const (&lanes)[32]) {
  for (const Read& read : one.reads) {
    if (std::memcmp(read.at, read.numbers, 16))
      fail(one.where, "byte %td of shared memory was changed while a product read it",
           read.at - state.shared);
    touch_by_product(read.at, 16, one.where);
  }
  for (int lane = 0; lane < 32 && one.a[0]; ++lane) {
    if (std::memcmp(one.a[lane], one.held[lane], 16))
      fail(one.where, "registers of A were changed while a product read them");
    if (!lanes[lane]->has(one.a[lane]))
      fail(one.where, "registers of A are not taken back by the wait for the product");
    forget(lane, one.a[lane]);
  }
}

void give_back(Result& result, Wait* const (&lanes)[32]) {
  for (int lane = 0; lane < 32; ++lane) {
    float* c = result.at[lane];
    for (int i = 0; i < result.columns / 2; ++i)
      if (std::memcmp(c + i, &kPoison, 4))
        fail(lanes[lane]->where, "registers of the result were changed before it was there");
    if (!lanes[lane]->has(c))
      fail(lanes[lane]->where, "registers of the result are not taken back by the wait for it");
    std::memcpy(c, result.of(lane), result.columns / 2 * sizeof(float));
    forget(lane, c);
  }
}

void wait_for_all(uint64_t* values) {
  Wait* lanes[32];
  for (int lane = 0; lane < 32; ++lane) lanes[lane] = reinterpret_cast<Wait*>(values[lane]);
  Warp& warp = mine();
  std::vector<Running> left;
  for (Running& one : warp.running) {
    if (one.group >= warp.group - lanes[0]->left) {
      left.push_back(std::move(one));
      continue;
    }
    finish(one, lanes);
    for (size_t i = warp.results.size(); i--;)
      if (warp.results[i].at[0] == one.c && !--warp.results[i].running) {
        give_back(warp.results[i], lanes);
        warp.results.erase(warp.results.begin() + i);
      }
  }
  warp.running.swap(left);
}

}  // namespace

void start(const Product& product, Where where) {
  Started mine{&product, where};
  meet(~0u, reinterpret_cast<uint64_t>(&mine), where, start_all);
}

void hand_over(const Registers* registers, int count, Where where) {
  for (int i = 0; i < count; ++i) {
    const char* at = static_cast<const char*>(registers[i].at);
    forget(self->lane, at);
    mine().held[self->lane].push_back({at, std::vector<char>(at, at + registers[i].bytes)});
  }
  meet(~0u, 0, where);
}

void commit(Where where) {
  meet(~0u, 0, where, [](uint64_t*) { ++mine().group; });
}

void wait_for(int groups_left, const Registers* registers, int count, Where where) {
  Wait wait{groups_left, registers, count, where};
  meet(~0u, reinterpret_cast<uint64_t>(&wait), where, wait_for_all);
}

void show(Where) { ++state.shown[self->index.x]; }

void begin_products() {
  size_t count = (state.clocks.size() + 31) / 32;
  warps.assign(count, Warp{});
  groups.assign((count + 3) / 4, {});
}

void end_products() {
  for (size_t at = 0; at < warps.size(); ++at) {
    if (!warps[at].running.empty())
      fail(warps[at].running[0].where, "a product is never waited for");
    if (warps[at].started != groups[at / 4].size())
      fail({"?", 0}, "warp %zu has started %zu products, and its warpgroup %zu", at,
           warps[at].started, groups[at / 4].size());
  }
}

}  // namespace simt
