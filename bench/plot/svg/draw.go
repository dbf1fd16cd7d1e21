package main

import (
	"bytes"
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Colours that people with any colour vision tell apart.
var (
	colourA      = color.RGBA{R: 0xe6, G: 0x9f, A: 0xff}
	colourB      = color.RGBA{G: 0x72, B: 0xb2, A: 0xff}
	colourTheirs = color.RGBA{R: 0xd5, G: 0x5e, A: 0xff}
	colourLine   = color.Gray{Y: 0x80}
)

const (
	barWidth    = 14 // points
	rowWidth    = 60
	panelHeight = 200
)

// render gives the SVG of a table: values above if all have one unit, the ratio
// below if there is one.
func render(rep report, t table) ([]byte, error) {
	var panels [][]*plot.Plot
	if unit, one := unitOf(t); one || t.B == "" {
		values, err := valuePanel(t, unit)
		if err != nil {
			return nil, err
		}
		panels = append(panels, []*plot.Plot{values})
	}
	if t.B != "" {
		ratio, err := ratioPanel(t)
		if err != nil {
			return nil, err
		}
		panels = append(panels, []*plot.Plot{ratio})
	}
	m := rep.Machine
	panels[0][0].Title.Text = fmt.Sprintf("Table %d: %s\n%s, %d cores, Linux %s", t.Number, t.Title, m.CPU, m.Cores, m.Kernel)

	width := vg.Length(max(8, len(t.Rows)))*rowWidth + 80
	c := vgsvg.New(width, vg.Length(len(panels))*panelHeight+40)
	tiles := column(len(panels))
	for _, p := range panels {
		p[0].Y.Max *= 1.25 // room for the legend
	}
	for i, row := range plot.Align(panels, tiles, draw.New(c)) {
		panels[i][0].Draw(row[0])
	}
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// column is a column of panels.
func column(rows int) draw.Tiles {
	return draw.Tiles{Rows: rows, Cols: 1, PadTop: 4, PadBottom: 4, PadLeft: 4, PadRight: 12, PadY: 10}
}

// unitOf is the unit of the rows, if they have the same.
func unitOf(t table) (unit string, one bool) {
	for i, r := range t.Rows {
		u := r.Unit
		if u == "" {
			u = t.Unit
		}
		if i > 0 && u != unit {
			return "", false
		}
		unit = u
	}
	return unit, true
}

// valuePanel has a bar for A and one for B, if there is one, in each row.
func valuePanel(t table, unit string) (*plot.Plot, error) {
	p := newPanel(t)
	scale := 1.0
	if unit == "packets/s" {
		unit, scale = "Mpps", 1e-6
	}
	p.Y.Label.Text = unit
	type side struct {
		name   string
		value  func(row) stat
		colour color.Color
		offset vg.Length
	}
	sides := []side{{t.A, func(r row) stat { return r.A }, colourA, -barWidth / 2}, {t.B, func(r row) stat { return r.B }, colourB, barWidth / 2}}
	if t.B == "" {
		sides = []side{{t.A, func(r row) stat { return r.A }, colourB, 0}}
	}
	for _, side := range sides {
		if err := addBars(p, t.Rows, side.name, side.value, scale, side.colour, side.offset); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// ratioPanel has a bar for our ratio and a mark for the published one.
func ratioPanel(t table) (*plot.Plot, error) {
	p := newPanel(t)
	p.Y.Label.Text = t.B + " / " + t.A
	if err := addBars(p, t.Rows, "ours", func(r row) stat { return r.Ratio }, 1, colourB, 0); err != nil {
		return nil, err
	}
	var theirs plotter.XYs
	for i, r := range t.Rows {
		if r.Theirs != nil {
			theirs = append(theirs, plotter.XY{X: float64(i), Y: r.Theirs.Ratio})
		}
	}
	if len(theirs) > 0 {
		s, err := plotter.NewScatter(theirs)
		if err != nil {
			return nil, err
		}
		s.GlyphStyle = draw.GlyphStyle{Color: colourTheirs, Radius: 4, Shape: draw.PyramidGlyph{}}
		p.Add(s)
		p.Legend.Add("published", s)
	}
	equal := plotter.NewFunction(func(float64) float64 { return 1 })
	equal.LineStyle = draw.LineStyle{Color: colourLine, Width: 0.7, Dashes: []vg.Length{3, 3}}
	p.Add(equal)
	return p, nil
}

// newPanel has the rows along x and begins at 0.
func newPanel(t table) *plot.Plot {
	p := plot.New()
	p.Y.Min = 0
	p.Legend.Top = true
	p.Legend.Padding = 2
	labels := make([]string, len(t.Rows))
	for i, r := range t.Rows {
		labels[i] = r.Name
		if r.Threads > 0 {
			labels[i] += fmt.Sprintf("\n%d x %d", r.Threads, r.Burst)
			p.X.Label.Text = "threads x burst"
		}
	}
	p.NominalX(labels...)
	p.X.Min, p.X.Max = -0.5, float64(len(labels))-0.5
	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	p.Add(grid)
	return p
}

// bars are values with their lowest and highest.
type bars struct {
	plotter.XYs
	plotter.YErrors
}

// addBars draws medians as bars with whiskers from min to max.
func addBars(p *plot.Plot, rows []row, name string, value func(row) stat, scale float64, colour color.Color, offset vg.Length) error {
	var medians plotter.Values
	var b bars
	for i, r := range rows {
		s := value(r)
		medians = append(medians, s.Median*scale)
		b.XYs = append(b.XYs, plotter.XY{X: float64(i), Y: s.Median * scale})
		b.YErrors = append(b.YErrors, struct{ Low, High float64 }{(s.Min - s.Median) * scale, (s.Max - s.Median) * scale})
	}
	chart, err := plotter.NewBarChart(medians, barWidth)
	if err != nil {
		return err
	}
	chart.Color, chart.Offset, chart.LineStyle.Width = colour, offset, 0
	whiskers, err := plotter.NewYErrorBars(b)
	if err != nil {
		return err
	}
	p.Add(chart, shifted{whiskers, offset})
	p.Legend.Add(name, chart)
	return nil
}

// shifted draws whiskers where a bar with this offset stands.
type shifted struct {
	*plotter.YErrorBars
	by vg.Length
}

func (s shifted) Plot(c draw.Canvas, p *plot.Plot) {
	c.Min.X += s.by
	c.Max.X += s.by
	s.YErrorBars.Plot(c, p)
}
