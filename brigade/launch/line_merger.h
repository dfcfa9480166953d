// Several ranks' output on one terminal or file: whole lines, never torn, each
// behind its rank's prefix. On a terminal, an unfinished line of a stream
// without prefix (a progress bar) is shown at once, and moves down when another
// line comes in.
//
// One thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

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

 private:
  struct Stream {
    StreamOptions options;
    std::string pending;  // behind the last line end
    size_t shown = 0;     // bytes of pending that the terminal shows
  };
  void write_line(Stream& stream, std::string_view line);
  void show_unfinished(Stream& stream);

  std::vector<Stream> streams_;
  // The stream whose unfinished line stands on the terminal.
  static constexpr size_t kNone = static_cast<size_t>(-1);
  size_t open_ = kNone;
};

// Writes all of it, waiting where the other side is slow. What cannot be
// written (a closed pipe) is lost.
void write_all(int descriptor, std::string_view bytes);

}  // namespace brigade
