// Several ranks' output on one terminal or file: whole lines, never torn, each
// behind its rank's prefix. On a terminal, an unfinished line of a stream
// without prefix (a progress bar) is shown at once, and moves down when another
// line comes in.
//
// Never waits for a slow reader: what cannot be written yet is queued. The
// owner stops feeding while is_full(), so that the ranks wait instead.
//
// One thread.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/launch/output_queue.h"

namespace brigade {

class LineMerger {
 public:
  struct StreamOptions {
    int descriptor = 1;  // where to write
    std::string prefix;  // "[rank 1] "
    bool is_terminal = false;
  };
  // Returns the stream's number.
  size_t add_stream(StreamOptions options);

  void feed(size_t stream, std::string_view bytes);
  // Writes an unfinished last line, with a line end.
  void finish(size_t stream);

  bool is_full() const;
  // Where what is queued goes.
  std::vector<int> unwritten_descriptors() const;
  // The errno of the first failure to write to the descriptor; 0: none.
  int failure_of(int descriptor) const;
  // What the descriptors take now. Returns the number of bytes.
  size_t write_some();
  // Forgets what is queued. Returns its size in bytes.
  size_t drop();

 private:
  struct Stream {
    StreamOptions options;
    OutputQueue* queue = nullptr;  // of options.descriptor
    std::string pending;           // behind the last line end
    size_t shown = 0;              // bytes of pending that the terminal shows
  };
  void write_line(Stream& stream, std::string_view line);
  void show_unfinished(Stream& stream);

  std::vector<Stream> streams_;
  std::deque<OutputQueue> queues_;  // one per descriptor
  // The stream whose unfinished line stands on the terminal.
  static constexpr size_t kNone = static_cast<size_t>(-1);
  size_t open_ = kNone;
};

}  // namespace brigade
