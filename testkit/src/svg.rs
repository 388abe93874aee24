//! What the charts of the soak and of the bench have in common: a title above the drawing, and the colours.

/// Readable on white and on black, by what the viewer prefers.
const STYLE: &str = "<style>
  text { font: 12px system-ui, sans-serif; fill: #333 }
  .title { font-size: 15px; font-weight: 600 }
  .grid { stroke: #8884 }
  .whisker { stroke: #333 }
  .curve { fill: none; stroke: #0969da; stroke-width: 1.5; stroke-linejoin: round }
  .ours { fill: #0969da }
  .limit { fill: #8c959f }
  .other { fill: #d1242f; opacity: .75 }
  .shade { fill: #d1242f; opacity: .07 }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd } .whisker { stroke: #ddd } .curve { stroke: #58a6ff } .ours { fill: #58a6ff }
    .other { fill: #ff7b72 } .shade { fill: #ff7b72; opacity: .1 }
  }
</style>";

/// Where the drawing may begin.
pub const TOP: f64 = 40.0;

pub fn titled(title: &str, width: f64, height: f64, drawing: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">\n\
         {STYLE}\n<text class=\"title\" x=\"8\" y=\"22\">{title}</text>\n{drawing}</svg>\n"
    )
}
