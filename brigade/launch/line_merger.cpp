#include "brigade/launch/line_merger.h"

#include <algorithm>
#include <utility>

namespace brigade {

namespace {
// A line longer than this is cut: no rank can make the supervisor hold more.
constexpr size_t kMaxLineBytes = size_t{1} << 20;
constexpr std::string_view kEraseLine = "\r\x1b[K";
}  // namespace

size_t LineMerger::add_stream(StreamOptions options) {
  const auto found =
      std::ranges::find(queues_, options.descriptor, &OutputQueue::descriptor);
  OutputQueue& queue = found == queues_.end()
                           ? queues_.emplace_back(options.descriptor)
                           : *found;
  streams_.push_back({.options = std::move(options), .queue = &queue});
  return streams_.size() - 1;
}

bool LineMerger::is_full() const {
  return std::ranges::any_of(queues_, &OutputQueue::is_full);
}

std::vector<int> LineMerger::unwritten_descriptors() const {
  std::vector<int> descriptors;
  for (const OutputQueue& queue : queues_) {
    if (!queue.is_empty())
      descriptors.push_back(queue.descriptor());
  }
  return descriptors;
}

int LineMerger::failure_of(int descriptor) const {
  for (const OutputQueue& queue : queues_) {
    if (queue.descriptor() == descriptor)
      return queue.failure();
  }
  return 0;
}

size_t LineMerger::write_some() {
  size_t bytes = 0;
  for (OutputQueue& queue : queues_)
    bytes += queue.write_some();
  return bytes;
}

size_t LineMerger::drop() {
  size_t bytes = 0;
  for (OutputQueue& queue : queues_)
    bytes += queue.drop();
  return bytes;
}

void LineMerger::feed(size_t index, std::string_view bytes) {
  Stream& stream = streams_[index];
  stream.pending += bytes;
  const bool has_line = stream.pending.find('\n') != std::string::npos ||
                        stream.pending.size() >= kMaxLineBytes;
  if (has_line && open_ != kNone && open_ != index) {
    Stream& open = streams_[open_];
    open.queue->push(kEraseLine);
    open.shown = 0;
  }
  size_t begin = 0;
  std::string_view pending = stream.pending;
  for (size_t end = pending.find('\n'); end != std::string_view::npos;
       end = pending.find('\n', begin)) {
    write_line(stream, pending.substr(begin, end + 1 - begin));
    begin = end + 1;
  }
  if (pending.size() - begin >= kMaxLineBytes) {
    write_line(stream, std::string(pending.substr(begin)) + "\n");
    begin = pending.size();
  }
  stream.pending.erase(0, begin);
  if (has_line && open_ == index)
    open_ = kNone;
  const bool shows_unfinished =
      stream.options.is_terminal && stream.options.prefix.empty();
  if (shows_unfinished && !stream.pending.empty() &&
      (open_ == kNone || open_ == index)) {
    open_ = index;
  }
  if (open_ != kNone)
    show_unfinished(streams_[open_]);
}

void LineMerger::finish(size_t index) {
  if (!streams_[index].pending.empty())
    feed(index, "\n");
}

void LineMerger::write_line(Stream& stream, std::string_view line) {
  // The part that the terminal shows already was written without prefix.
  if (stream.shown > 0)
    line.remove_prefix(std::exchange(stream.shown, 0));
  // One write where it is short, so that nothing that shares the descriptor
  // comes in between.
  stream.queue->push(stream.options.prefix + std::string(line));
}

void LineMerger::show_unfinished(Stream& stream) {
  if (stream.shown == stream.pending.size())
    return;
  stream.queue->push(std::string_view(stream.pending).substr(stream.shown));
  // A progress bar returns to the line's start without end: keep its last
  // state.
  const size_t last_return = stream.pending.rfind('\r');
  if (last_return != std::string::npos)
    stream.pending.erase(0, last_return);
  stream.shown = stream.pending.size();
}

}  // namespace brigade
