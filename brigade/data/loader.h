// Batches, prepared ahead of time on a thread of the loader's own.
//
//   Loader loader(source, {.layout = {.micro_batch_size = 4, .dp_size = 2}});
//   loader.seek_sample(sample);         // when resuming
//   while (...) {                       // accumulation_steps times per step
//     Batch batch = loader.next();
//   }
//
// next() and seek_sample() are called from one thread, the trainer's. The order
// of the batches is that of sample_index(): micro-batch after micro-batch, step
// after step, without end.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "brigade/data/sample_source.h"

namespace brigade {

// One micro-batch of one rank of dp; all of B rows * T tokens, row after row.
struct Batch {
  int64_t rows = 0;        // B
  int64_t seq_length = 0;  // T
  uint64_t step = 0;
  int64_t micro_batch = 0;
  uint64_t first_sample = 0;     // of the run; the rows are consecutive samples
  std::vector<int64_t> inputs;   // [B, T]
  std::vector<int64_t> targets;  // [B, T], see Window::targets
  // With LoaderOptions::reset_attention, else empty: each token's place in its
  // document. A token must attend only to tokens of its own document.
  std::vector<int64_t> position_ids;  // [B, T]
  std::vector<double> reference;      // [B], of each row's window; or empty
  TeacherTokens teacher;              // of all targets; or empty
};

struct LoaderOptions {
  BatchLayout layout;
  bool reset_attention = false;
  int64_t queue_capacity = 4;  // batches prepared ahead
};

class Loader {
 public:
  // Starts at step 0.
  Loader(
      std::shared_ptr<const SampleSource> source,
      const LoaderOptions& options);
  // Stops the thread; batches that were not taken are dropped.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next batch; waits if it is not ready yet. Throws what reading it threw
  // (DataError), each time it is called, until seek_sample().
  Batch next();

  // Continues with a step whose first sample is `sample`, wherever steps of
  // this batch size would begin; that step is step 0 of the batches. O(1).
  void seek_sample(uint64_t sample);

  // How long next() has waited for the thread, altogether.
  double waited_ms() const { return waited_ms_; }

 private:
  void start();
  void stop();
  void run();
  Batch prepare(uint64_t step, int64_t micro_batch) const;

  std::shared_ptr<const SampleSource> source_;
  LoaderOptions options_;
  uint64_t first_sample_ = 0;  // of step 0
  double waited_ms_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> queue_;       // guarded by mutex_
  std::exception_ptr exception_;  // guarded by mutex_
  bool stopping_ = false;         // guarded by mutex_
  std::thread thread_;
};

}  // namespace brigade
