#include "brigade/data/loader.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "brigade/base/check.h"

namespace brigade {
namespace {

void add_documents(const Window& window, Batch& batch) {
  std::vector<int64_t> ends = window.document_starts;
  ends.push_back(batch.seq_length);
  int64_t begin = 0;
  for (const int64_t end : ends) {
    for (int64_t position = begin; position < end; ++position)
      batch.position_ids.push_back(position - begin);
    begin = end;
  }
}

void append(const TeacherTokens& row, TeacherTokens& all) {
  all.k = row.k;
  all.ids.insert(all.ids.end(), row.ids.begin(), row.ids.end());
  all.log_probs.insert(
      all.log_probs.end(), row.log_probs.begin(), row.log_probs.end());
}

}  // namespace

Loader::Loader(
    std::shared_ptr<const SampleSource> source,
    const LoaderOptions& options)
    : source_(std::move(source)), options_(options) {
  BRIGADE_ASSERT(options_.queue_capacity > 0);
  BRIGADE_ASSERT(options_.layout.global_batch_size() > 0);
  start();
}

Loader::~Loader() {
  stop();
}

void Loader::start() {
  thread_ = std::thread([this] { run(); });
}

void Loader::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Loader::seek_sample(uint64_t sample) {
  stop();
  first_sample_ = sample;
  queue_.clear();
  exception_ = nullptr;
  stopping_ = false;
  start();
}

Batch Loader::next() {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  // Batches that were ready before the failure are still good.
  changed_.wait(lock, [&] { return !queue_.empty() || exception_; });
  waited_ms_ += std::chrono::duration<double, std::milli>(
                    std::chrono::steady_clock::now() - begin)
                    .count();
  if (queue_.empty())
    std::rethrow_exception(exception_);
  Batch batch = std::move(queue_.front());
  queue_.pop_front();
  lock.unlock();
  changed_.notify_all();
  return batch;
}

void Loader::run() {
  const auto capacity = static_cast<size_t>(options_.queue_capacity);
  uint64_t step = 0;
  int64_t micro_batch = 0;
  while (true) {
    Batch batch;
    std::exception_ptr exception;
    try {
      batch = prepare(step, micro_batch);
    } catch (...) {
      exception = std::current_exception();
    }
    {
      std::unique_lock lock(mutex_);
      changed_.wait(
          lock, [&] { return stopping_ || queue_.size() < capacity; });
      if (stopping_)
        return;
      if (exception)
        exception_ = exception;
      else
        queue_.push_back(std::move(batch));
    }
    changed_.notify_all();
    if (exception)
      return;
    if (++micro_batch == options_.layout.accumulation_steps) {
      micro_batch = 0;
      ++step;
    }
  }
}

Batch Loader::prepare(uint64_t step, int64_t micro_batch) const {
  const int64_t rows = options_.layout.micro_batch_size;
  const int64_t seq_length = source_->seq_length();
  Batch batch{
      .rows = rows,
      .seq_length = seq_length,
      .step = step,
      .micro_batch = micro_batch,
      .first_sample =
          first_sample_ + sample_index(options_.layout, step, micro_batch, 0)};
  const auto numel = static_cast<size_t>(rows * seq_length);
  batch.inputs.reserve(numel);
  batch.targets.reserve(numel);
  Window window;
  for (int64_t row = 0; row < rows; ++row) {
    source_->read(batch.first_sample + static_cast<uint64_t>(row), window);
    BRIGADE_ASSERT(
        window.inputs.size() == static_cast<size_t>(seq_length) &&
            window.targets.size() == window.inputs.size(),
        "{} inputs and {} targets for seq_length {}",
        window.inputs.size(),
        window.targets.size(),
        seq_length);
    batch.inputs.insert(
        batch.inputs.end(), window.inputs.begin(), window.inputs.end());
    batch.targets.insert(
        batch.targets.end(), window.targets.begin(), window.targets.end());
    if (window.reference)
      batch.reference.push_back(*window.reference);
    append(window.teacher, batch.teacher);
    if (options_.reset_attention)
      add_documents(window, batch);
  }
  return batch;
}

}  // namespace brigade
