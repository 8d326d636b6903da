#include "shared_pages.hpp"

#include <algorithm>

namespace octavo {
namespace {

struct Reader {
  const int32_t* blocks;
  int segments;  // that it sees whole
};

int equal_blocks(const Reader& a, const Reader& b, int most) {
  return int(std::mismatch(a.blocks, a.blocks + most, b.blocks).first - a.blocks);
}

}  // namespace

SharedPages find_shared_pages(const StepArrays& step, const StepArrays::Table& table,
                              int block_size, bool split_lone) {
  SharedPages found;
  found.segments.assign(size_t(step.num_rows), 0);
  found.record.assign(size_t(step.num_rows), 0);
  std::vector<Reader> readers(size_t(step.num_rows), Reader{nullptr, 0});
  for (int r = 0; r < step.num_rows; ++r) {
    const bool one = step.query_start[r + 1] - step.query_start[r] == 1;
    const int seen = (step.context_lens[r] + 1) / kSegment;
    if (!one || seen == 0 || table.first_position[r] != 0) continue;
    readers[size_t(r)] = {table.blocks + size_t(step.slots[r]) * size_t(table.width), seen};
    found.order.push_back(r);
  }
  const auto blocks = [block_size](int segments) {
    return (segments * kSegment + block_size - 1) / block_size;
  };
  std::sort(found.order.begin(), found.order.end(), [&](int a, int b) {
    const Reader &x = readers[size_t(a)], &y = readers[size_t(b)];
    const int most = blocks(std::min(x.segments, y.segments));
    const int equal = equal_blocks(x, y, most);
    if (equal < most) return x.blocks[equal] < y.blocks[equal];
    return x.segments != y.segments ? x.segments < y.segments : a < b;
  });
  const int rows = int(found.order.size());
  // Per place in `order`: whole segments in common with the place before it.
  std::vector<int> common(size_t(rows) + 1, 0);
  for (int i = 1; i < rows; ++i) {
    const Reader& x = readers[size_t(found.order[size_t(i - 1)])];
    const Reader& y = readers[size_t(found.order[size_t(i)])];
    const int most = blocks(std::min(x.segments, y.segments));
    const int equal = equal_blocks(x, y, most) * block_size / kSegment;
    common[size_t(i)] = std::min({equal, x.segments, y.segments});
  }
  int deepest = 0;
  for (int i = 0; i < rows; ++i) {
    const size_t row = size_t(found.order[size_t(i)]);
    const int seen = readers[row].segments;
    int& covered = found.segments[row];
    covered = split_lone && seen > 1 ? seen : std::max(common[size_t(i)], common[size_t(i) + 1]);
    found.record[row] = found.num_records;
    found.num_records += covered;
    deepest = std::max(deepest, covered);
  }
  for (int segment = 0; segment < deepest; ++segment) {
    for (int begin = 0, end = 1; begin < rows; begin = end++) {
      while (end < rows && common[size_t(end)] > segment) ++end;
      if (found.segments[size_t(found.order[size_t(begin)])] > segment) {
        found.tasks.push_back({segment, begin, end});
      }
    }
  }
  return found;
}

}  // namespace octavo
