use holdfast_sim::Preset;
pub(crate) fn are_checked(_: Preset) -> Result<(), String> {
    Ok(())
}
pub(crate) fn from_strangers(_: Preset) -> Result<(), String> {
    Ok(())
}
pub(crate) fn in_any_state(_: Preset) -> Result<(), String> {
    Ok(())
}
