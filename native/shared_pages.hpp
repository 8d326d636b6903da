// Which rows of a step read the same physical pages, by softmax segment.
//
// Rows that share a prefix have equal leading entries in their block tables. A segment whose pages
// are equal is worked on once for all of its rows, so that they come from memory once; each row
// keeps a result of its own and merges its segments in ascending order, so no bit changes.
#pragma once

#include <vector>

#include "model.hpp"

namespace octavo {

struct SharedPages {
  struct Task {
    int segment;
    int begin, end;  // rows order[begin, end)
  };
  std::vector<int> order;     // the rows looked at, equal tables side by side
  std::vector<Task> tasks;
  std::vector<int> segments;  // per row of the step: how many leading segments tasks cover
  std::vector<int> record;    // per row: the first of its results
  int num_records = 0;
};

// Looks at rows of one token. `split_lone` also makes tasks of segments that one row reads alone:
// more items, for steps of few rows over long contexts.
SharedPages find_shared_pages(const StepArrays& step, const StepArrays::Table& table,
                              int block_size, bool split_lone);

}  // namespace octavo
